package config

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
)

// registriesName is the key of the registry credentials in a Secret of type kubernetes.io/dockerconfigjson.
const registriesName = ".dockerconfigjson"

// checkRegistries checks that agents can parse the registry credentials. The error does not quote them.
func checkRegistries(content []byte) error {
	var file struct {
		Auths map[string]struct {
			Auth string `json:"auth"`
		} `json:"auths"`
	}
	if json.Unmarshal(content, &file) != nil || len(file.Auths) == 0 {
		return errors.New("not a Docker configuration with credentials for container registries")
	}
	for _, registry := range file.Auths {
		if registry.Auth == "" {
			continue // the file has username and password, or a token, in other fields
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
