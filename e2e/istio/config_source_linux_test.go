package istio

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestIstiodFeedsTheControlPlane runs this project's control plane with istiod as its only source of documents. istiod
// serves them to a control plane with an account of its own namespace.
func TestIstiodFeedsTheControlPlane(t *testing.T) {
	n, known := newNode(t, "10.157.0.1"), cluster()
	known.tokens[podToken("edge")] = "istio-system:edge"
	source := newIstiod(t, n, known, strict+`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: reviews, namespace: books}
spec: {hosts: [reviews], http: [{timeout: 3s, route: [{destination: {host: reviews}}]}]}
`)
	dir := t.TempDir()
	mesh := fmt.Sprintf(`configSources: [{address: "xds://%s:15012", tlsSettings: {mode: SIMPLE, sni: istiod.istio-system.svc, caCertificates: %s/root.pem}}]`, n.address, dir)
	err := errors.Join(os.WriteFile(filepath.Join(dir, "mesh.yaml"), []byte(mesh), 0o600), os.WriteFile(filepath.Join(dir, "root.pem"), []byte(source.roots(t, "books")), 0o600),
		os.WriteFile(filepath.Join(dir, "token"), []byte(podToken("edge")), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testenv.Bin(t, "pilotfish"), "control-plane", "--mesh-config", dir+"/mesh.yaml", "--config-source-token-file", dir+"/token", "--state-dir", dir+"/state",
		"--port", "-2", "--secure-port", "25012", "--monitoring-port", "25014", "--token-port", "-2")
	n.Start(t, cmd)
	documents := func() (list []string, err error) {
		if _, err := n.get("http://127.0.0.1:25014/ready"); err != nil {
			return nil, err
		}
		body, err := n.get("http://127.0.0.1:25014/debug/configz")
		if err != nil {
			return nil, err
		}
		var documents []struct {
			Resource struct{ Kind, Namespace, Name string }
			State    string
		}
		err = json.Unmarshal(body, &documents)
		for _, d := range documents {
			list = append(list, fmt.Sprintf("%s %s/%s %s", d.Resource.Kind, d.Resource.Namespace, d.Resource.Name, d.State))
		}
		slices.Sort(list)
		return list, err
	}
	const reviews, other = "VirtualService books/reviews in force", "VirtualService books/other in force"
	await := func(what string, isDone func(documents []string) bool) {
		t.Helper()
		testenv.Eventually(t, what, func() error {
			got, err := documents()
			if err == nil && !isDone(got) {
				err = fmt.Errorf("the documents are %q", got)
			}
			return err
		})
	}
	await("the documents of istiod", func(documents []string) bool {
		return slices.Contains(documents, "PeerAuthentication istio-system/default in force") && slices.Contains(documents, reviews)
	})
	source.write(t, "policies/all.yaml", strict+`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other, namespace: books}
spec: {hosts: [reviews], http: [{route: [{destination: {host: reviews}}]}]}
`)
	await("an added and a removed document", func(documents []string) bool {
		return slices.Contains(documents, other) && !slices.Contains(documents, reviews)
	})
}
