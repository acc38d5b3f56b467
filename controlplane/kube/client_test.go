package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const twoContexts = `
apiVersion: v1
kind: Config
current-context: first
clusters:
- name: a
  cluster: {server: "https://a.example:6443"}
- name: b
  cluster: {server: "https://b.example:6443"}
contexts:
- name: first
  context: {cluster: a, user: u}
- name: second
  context: {cluster: b, user: u}
users:
- name: u
  user: {token: secret}
`

func writeKubeconfig(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestClientUsesTheSelectedContext(t *testing.T) {
	path := writeKubeconfig(t, twoContexts)
	for context, want := range map[string]string{"": "https://a.example:6443", "second": "https://b.example:6443"} {
		client, err := NewClient(ClientConfig{Kubeconfig: path, Context: context})
		if err != nil {
			t.Fatal(err)
		}
		if client.Host() != want {
			t.Errorf("context %q: host %s, want %s", context, client.Host(), want)
		}
	}
}

func TestClientReadsKubeconfigVariable(t *testing.T) {
	t.Setenv("KUBECONFIG", writeKubeconfig(t, twoContexts))
	client, err := NewClient(ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "https://a.example:6443"; client.Host() != want {
		t.Errorf("host %s, want %s", client.Host(), want)
	}
}

func TestClientErrorsNameTheRemedy(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "missing"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	path := writeKubeconfig(t, twoContexts)
	for name, test := range map[string]struct {
		config ClientConfig
		want   string
	}{
		"no cluster":      {ClientConfig{}, "set --kubeconfig or KUBECONFIG"},
		"unknown context": {ClientConfig{Kubeconfig: path, Context: "third"}, "third"},
		"missing file":    {ClientConfig{Kubeconfig: path + "-missing"}, "missing"},
	} {
		if _, err := NewClient(test.config); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one that contains %q", name, err, test.want)
		}
	}
}
