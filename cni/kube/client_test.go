package kube

import (
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// writeKubeconfig writes a kubeconfig for a test server, in the form that Istio's node agent writes for its plugin.
func writeKubeconfig(t *testing.T, server *httptest.Server, user string) string {
	t.Helper()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: cni
  user:
    %s
contexts:
- name: ctx
  context: {cluster: local, user: cni}
current-context: ctx
`, server.URL, base64.StdEncoding.EncodeToString(ca), user)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func clientOf(t *testing.T, server *httptest.Server, user string) *Client {
	t.Helper()
	config, err := Load(writeKubeconfig(t, server, user))
	if err != nil {
		t.Fatal(err)
	}
	client, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func TestPodIsReadByKubeconfig(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" || r.URL.Path != "/api/v1/namespaces/shop/pods/web-1" {
			t.Errorf("request %s with authorization %q", r.URL, r.Header.Get("Authorization"))
		}
		fmt.Fprint(w, `{"kind":"Pod","metadata":{"name":"web-1","namespace":"shop","uid":"u1","annotations":{"sidecar.istio.io/status":"{}"}},
			"spec":{"initContainers":[{"name":"istio-proxy","restartPolicy":"Always","securityContext":{"runAsUser":1337}}]}}`)
	}))
	defer server.Close()
	pod, err := clientOf(t, server, "token: s3cret").Pod(t.Context(), "shop", "web-1")
	if err != nil {
		t.Fatal(err)
	}
	if pod.Metadata.UID != "u1" || *pod.Spec.InitContainers[0].SecurityContext.RunAsUser != 1337 {
		t.Errorf("read %+v", pod)
	}
}

func TestRenewedTokenIsUsedAtOnce(t *testing.T) {
	var got string
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		fmt.Fprint(w, `{}`)
	}))
	defer server.Close()
	token := filepath.Join(t.TempDir(), "token")
	client := clientOf(t, server, "tokenFile: "+token)
	for _, want := range []string{"one", "two"} {
		if err := os.WriteFile(token, []byte(want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Pod(t.Context(), "a", "b"); err != nil || got != "Bearer "+want {
			t.Errorf("%q was sent, want %q (%v)", got, want, err)
		}
	}
}

func TestRefusedRequestsReportTheRemedy(t *testing.T) {
	code := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","reason":"R%d","message":"because"}`, code)
	}))
	defer server.Close()
	client := clientOf(t, server, "token: x")
	for want, words := range map[int]string{401: "has expired", 403: "ClusterRole", 404: "because"} {
		code = want
		_, err := client.Pod(t.Context(), "a", "b")
		if err == nil || !strings.Contains(err.Error(), words) || IsNotFound(err) != (want == 404) {
			t.Errorf("%d: %v", want, err)
		}
	}
}

func TestTokenDoesNotFollowARedirect(t *testing.T) {
	asked := false
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer other.Close()
	server := httptest.NewTLSServer(http.RedirectHandler(other.URL, http.StatusFound))
	defer server.Close()
	if _, err := clientOf(t, server, "token: x").Pod(t.Context(), "a", "b"); err == nil || asked {
		t.Errorf("error %v, the other server received a request: %v", err, asked)
	}
}

func TestResponseSizeIsLimited(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		chunk := []byte(strings.Repeat(" ", 1<<20))
		for range agentapi.MaxBody>>20 + 2 {
			_, _ = w.Write(chunk)
		}
	}))
	defer server.Close()
	if _, err := clientOf(t, server, "token: x").Pod(t.Context(), "a", "b"); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Error(err)
	}
}

func TestErrorsOfInvalidKubeconfigsContainNoSecrets(t *testing.T) {
	for words, text := range map[string]string{
		"current-context":            "current-context: none\n",
		`cluster "x" is not defined`: "current-context: c\ncontexts: [{name: c, context: {cluster: x, user: y}}]\n",
		`user "y" is not defined`:    "current-context: c\ncontexts: [{name: c, context: {cluster: x, user: y}}]\nclusters: [{name: x, cluster: {server: 'https://a'}}]\n",
		"not an http":                "current-context: c\ncontexts: [{name: c, context: {cluster: x, user: y}}]\nclusters: [{name: x, cluster: {server: 'a'}}]\n",
		"tokenFile":                  "current-context: c\ncontexts: [{name: c, context: {cluster: x, user: y}}]\nclusters: [{name: x, cluster: {server: 'https://a'}}]\nusers: [{name: y, user: {exec: {}}}]\n",
		"wrong type":                 "users: [{name: y, user: {token: [hunter2]}}]\n",
		"not valid YAML":             "a: [hunter2\n",
	} {
		_, err := parse([]byte(text), "/")
		if err == nil || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzKubeconfig(f *testing.F) {
	f.Add([]byte("current-context: c\ncontexts: [{name: c, context: {cluster: x, user: y}}]\nclusters: [{name: x, cluster: {server: 'https://a'}}]\nusers: [{name: y, user: {token: t}}]\n"))
	f.Add([]byte(`{"current-context":"c"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text, t.TempDir())
		if err == nil && c.Server == "" {
			t.Error("a kubeconfig without a server was accepted")
		}
	})
}
