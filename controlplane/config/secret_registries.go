package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// registriesName is the part of a Secret of type kubernetes.io/dockerconfigjson.
const registriesName = ".dockerconfigjson"

// checkRegistries says whether agents can read what a client shows to registries. The error quotes nothing of it.
func checkRegistries(content []byte) error {
	var file struct {
		Auths map[string]struct {
			Auth string `json:"auth"`
		} `json:"auths"`
	}
	if json.Unmarshal(content, &file) != nil || len(file.Auths) == 0 {
		return errors.New("not the configuration of a client of container registries")
	}
	for _, registry := range file.Auths {
		if registry.Auth == "" {
			continue // it has its user and password apart, or a token
		}
		text, err := base64.StdEncoding.DecodeString(registry.Auth)
		if err != nil {
			text, err = base64.RawStdEncoding.DecodeString(registry.Auth)
		}
		if err != nil || !strings.Contains(string(text), ":") {
			return errors.New("the auth of a registry is not user:password in base64")
		}
	}
	return nil
}
