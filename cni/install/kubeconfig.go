package install

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubeconfig returns the kubeconfig with which the plugin authenticates to the API server. It contains the token
// itself, because the plugin runs on the host, where the pod's token file is not visible.
func (in *Installer) kubeconfig() ([]byte, error) {
	if in.config.Server == "" {
		return nil, errors.New("the API server's URL is unknown (does this run in a pod? is KUBERNETES_SERVICE_HOST set?)")
	}
	text, err := in.token()
	if err != nil {
		return nil, fmt.Errorf("the service account's token: %w", err)
	}
	cluster := map[string]any{"server": in.config.Server}
	switch {
	case in.config.SkipTLSVerify:
		cluster["insecure-skip-tls-verify"] = true
	default:
		ca, err := read(in.config.CAFile, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("the cluster's certificate authority: %w", err)
		}
		if !ca.exists {
			return nil, errors.New("the cluster's CA certificate is missing: " + in.config.CAFile + " (kube-ca-file)")
		}
		cluster["certificate-authority-data"] = base64.StdEncoding.EncodeToString(ca.content)
	}
	const name = "pilotfish-cni"
	return yaml.Marshal(map[string]any{
		"apiVersion":      "v1",
		"kind":            "Config",
		"clusters":        []any{map[string]any{"name": "local", "cluster": cluster}},
		"users":           []any{map[string]any{"name": name, "user": map[string]any{"token": text}}},
		"contexts":        []any{map[string]any{"name": name, "context": map[string]any{"cluster": "local", "user": name}}},
		"current-context": name,
	})
}

func (in *Installer) token() (string, error) {
	if in.config.Token != nil {
		return in.config.Token()
	}
	token, err := read(in.config.TokenFile, 1<<20)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(token.content))
	if text == "" {
		return "", fmt.Errorf("%s is missing or empty", in.config.TokenFile)
	}
	return text, nil
}
