package install

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// kubeconfig returns the content of the plugin's kubeconfig. It contains the token instead of a file name, because the
// plugin runs on the node, where the token file of the agent's pod does not exist.
func (in *Installer) kubeconfig() ([]byte, error) {
	if in.config.Server == "" {
		return nil, errors.New("the API server's URL is unknown: run the node agent in a pod, where KUBERNETES_SERVICE_HOST is set, or set kubeconfig")
	}
	text, err := in.token()
	if err != nil {
		return nil, fmt.Errorf("reading the service account's token: %w", err)
	}
	cluster := map[string]any{"server": in.config.Server}
	switch {
	case in.config.SkipTLSVerify:
		cluster["insecure-skip-tls-verify"] = true
	default:
		ca, err := read(in.config.CAFile, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("reading the cluster's CA certificate: %w", err)
		}
		if !ca.exists {
			return nil, errors.New("the file of the cluster's CA certificate does not exist: " + in.config.CAFile + " (kube-ca-file)")
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
