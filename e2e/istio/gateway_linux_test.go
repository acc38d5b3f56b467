package istio

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const throughTheGateway = `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: books}
spec:
  selector: {app: gateway}
  servers:
  - {hosts: ["shop.example"], port: {number: 8080, name: http, protocol: HTTP}}
  - {hosts: ["shop.example"], port: {number: 8443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: shop}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: front, namespace: books}
spec:
  hosts: [shop.example]
  gateways: [front]
  http: [{route: [{destination: {host: reviews.books.svc.cluster.local, port: {number: 9080}}}]}]
`

// TestGatewayOfAnIstioMesh: the gateway accepts requests from outside, in plaintext and with a certificate that istiod
// sends, and uses mutual TLS inside the mesh. The certificate's key is not on its disk.
func TestGatewayOfAnIstioMesh(t *testing.T) {
	t.Parallel()
	pki := testpki.New(t, "public")
	cert, key := pki.Server(t, "shop.example")
	known := cluster()
	known.lists["secrets"] = []object{{
		"metadata": object{"name": "shop", "namespace": books, "uid": "9"}, "type": "kubernetes.io/tls",
		"data": object{"tls.crt": base64.StdEncoding.EncodeToString(cert), "tls.key": base64.StdEncoding.EncodeToString(key)},
	}}
	m := newMeshWith(t, known, strict+throughTheGateway)
	gateway := newGateway(t, m.plane, "gateway", gatewayAddress).start(t)
	gateway.waitReady(t, m.node)

	for _, url := range []string{"http://shop.example:8080/", "https://shop.example:8443/"} {
		testenv.Eventually(t, url+" answers", func() error {
			body, err := m.node.getAt(gatewayAddress, url, &tls.Config{RootCAs: pki.Pool()})
			if err == nil && !bytes.Contains(body, []byte("URI=spiffe://cluster.local/ns/books/sa/gateway")) {
				err = fmt.Errorf("the application saw %s", body)
			}
			return err
		})
	}
	gateway.accepted(t)
	if file := findFileWith(t, gateway.dir, key); file != "" {
		t.Errorf("the key of the gateway's certificate is in %s", file)
	}
	checkWaypointFinding(t, m)
}

// checkWaypointFinding verifies that the agent names the filter of a waypoint's configuration that the upstream release
// of Envoy lacks. No setting of istiod omits that filter.
func checkWaypointFinding(t *testing.T, m *mesh) {
	t.Helper()
	p := newGateway(t, m.plane, "waypoint", waypointAddress)
	p.cmd = p.command(t, "proxy", "waypoint", "--domain", "books.svc.cluster.local")
	p.output, p.ended = p.namespace.Start(t, p.cmd)
	testenv.Eventually(t, "the waypoint's readiness names the filter", func() error {
		body, err := m.node.get("http://" + waypointAddress + ":15020/healthz/ready")
		if err == nil {
			t.Fatal("the waypoint is ready: is there a filter of that name now?")
		}
		if text := string(body) + err.Error(); !strings.Contains(text, "io.istio.http.peer_metadata.Config") {
			return errors.New(text)
		}
		return nil
	})
}

// getAt requests a URL from an address.
func (n *namespace) getAt(address, url string, trust *tls.Config) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	port := request.URL.Port()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: trust,
		DialContext: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
			return n.dial(ctx, network, address+":"+port)
		}}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", response.StatusCode, body)
	}
	return body, err
}

// findFileWith is a file below the directory that holds the key, as text or as it is on the wire; "" for none.
func findFileWith(t testing.TB, dir string, key []byte) (found string) {
	t.Helper()
	block, _ := pem.Decode(key)
	lines := bytes.Split(bytes.TrimSpace(key), []byte("\n"))
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, block.Bytes) || bytes.Contains(data, lines[1]) {
			found = path
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
