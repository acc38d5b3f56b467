package wasm

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
)

// dockerConfig contains the credentials of a Kubernetes pull secret (kubernetes.io/dockerconfigjson), by registry. It
// ignores the credential helper programs that such a file may specify.
type dockerConfig map[string]dockerAuth

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

var errPullSecret = errors.New("the pull secret cannot be parsed; use a secret of type kubernetes.io/dockerconfigjson")

// parseDockerConfig parses a pull secret. Its error does not contain the secret's content.
func parseDockerConfig(secret []byte) (dockerConfig, error) {
	var file struct {
		Auths dockerConfig `json:"auths"`
	}
	if json.Unmarshal(secret, &file) != nil {
		return nil, errPullSecret
	}
	for key, auth := range file.Auths {
		if auth.Auth == "" {
			continue
		}
		text, err := base64.StdEncoding.DecodeString(auth.Auth)
		if err != nil {
			if text, err = base64.RawStdEncoding.DecodeString(auth.Auth); err != nil {
				return nil, errPullSecret
			}
		}
		user, password, ok := strings.Cut(string(text), ":")
		if !ok {
			return nil, errPullSecret
		}
		auth.Username, auth.Password = user, strings.TrimRight(password, "\x00")
		file.Auths[key] = auth
	}
	return file.Auths, nil
}

// find returns the credentials of the most specific entry for an image: an entry with the registry and a path precedes
// one with only the registry.
func (c dockerConfig) find(registry, repository string) (authn.AuthConfig, bool) {
	best, longest := dockerAuth{}, -1
	for key, auth := range c {
		prefix := canonicalKey(key)
		image := canonicalRegistry(registry) + "/" + repository + "/"
		if strings.HasPrefix(image, prefix+"/") && len(prefix) > longest {
			best, longest = auth, len(prefix)
		}
	}
	return authn.AuthConfig{
		Username: best.Username, Password: best.Password, IdentityToken: best.IdentityToken, RegistryToken: best.RegistryToken,
	}, longest >= 0
}

// canonicalKey returns the key of an entry without the URL scheme and the protocol version (/v1), which older Docker
// configurations contain.
func canonicalKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	host, rest, _ := strings.Cut(key, "/")
	if rest == "v1" || rest == "v2" {
		rest = ""
	}
	host = canonicalRegistry(host)
	if rest == "" {
		return host
	}
	return host + "/" + rest
}

// canonicalRegistry returns the canonical host name of a registry. Only Docker Hub has several host names.
func canonicalRegistry(host string) string {
	domain := strings.TrimPrefix(name.DefaultRegistry, "index.")
	if host == domain || host == "registry-1."+domain {
		return name.DefaultRegistry
	}
	return host
}
