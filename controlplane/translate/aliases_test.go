package translate_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// While a mesh changes its trust domain, its servers have certificates of either trust domain.
func TestServerIdentityUnderTrustDomainAlias(t *testing.T) {
	mesh := newTestMesh(t, &meshconfig.MeshConfig{TrustDomain: "new.example", TrustDomainAliases: []string{"old.example"}}, `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: reviews, namespace: default}
spec:
  hosts: [reviews.example]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.0.0.1, serviceAccount: reviews, labels: {security.istio.io/tlsMode: istio}}]
`)
	p := proxy(t, "sidecar client.default 127.194.1.1 app=client")
	got, err := generate(mesh.snap, p, xds.ClusterType, nil)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(got, func(r *xds.Resource) bool { return r.Name == translate.OutboundCluster("reviews.example", "", 80) })
	if at < 0 {
		t.Fatal("the proxy has no cluster of the service")
	}
	text := renderResource(t, got[at])
	for _, id := range []string{"spiffe://new.example/ns/default/sa/reviews", "spiffe://old.example/ns/default/sa/reviews"} {
		if strings.Count(text, id) != 1 {
			t.Errorf("the cluster does not accept a server with the identity %s:\n%s", id, text)
		}
	}
}

// TestTrustDomainAliasCertificatesAreAccepted on both sides of a connection. Certificates of other trust domains are
// rejected, even with the same CA.
func TestTrustDomainAliasCertificatesAreAccepted(t *testing.T) {
	forEachEnvoyVersion(t, 173009, func(t *testing.T, version string, network int) {
		w := newTestEnvWithConfig(t, &meshconfig.MeshConfig{TrustDomain: "cluster.local", TrustDomainAliases: []string{"former.example"}}, version, network, pair, strictEverywhere, `
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: some, namespace: back}
spec: {rules: [{from: [{source: {principals: [cluster.local/ns/front/sa/client]}}]}]}
`)
		w.serveApp("NET.2.2:8080", "server", nil)
		for description, id := range map[string]string{clientNode: "spiffe://former.example/ns/front/sa/client", serverNode: "spiffe://former.example/ns/back/sa/server"} {
			e := w.plane.startEnvoy(version, w.expandNetwork(description), id)
			w.envoys++
			w.plane.inSync(w.envoys)
			e.hasSettled()
		}
		w.expect(200, "URI=spiffe://former.example/ns/front/sa/client", func() httpResult { return w.request(clientPort, serverURL) })

		// Clients with a certificate but no sidecar: an account in the alias that the policy does not allow, and
		// accounts in other trust domains.
		for id, want := range map[string]string{
			"spiffe://cluster.local/ns/front/sa/client":      "HTTP/1.1 200",
			"spiffe://former.example/ns/front/sa/client":     "HTTP/1.1 200",
			"spiffe://former.example/ns/front/sa/other":      "HTTP/1.1 403",
			"spiffe://foreign.example/ns/front/sa/client":    "",
			"spiffe://former.example.org/ns/front/sa/client": "",
		} {
			if got := w.statusFor(id); got != want {
				t.Errorf("the client %s receives %q, want %q", id, got, want)
			}
		}
	})
}

// statusFor returns the status line that a server's sidecar sends to a client with this identity. It returns "" if the
// handshake fails.
func (w *testEnv) statusFor(id string) string {
	w.t.Helper()
	cert, key := w.plane.ca.issue(id)
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := tls.Dial("tcp", w.expandNetwork("NET.2.1:8080"), &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, NextProtos: []string{"istio-http/1.1", "http/1.1"}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(c, "GET /x HTTP/1.1\r\nHost: server.back\r\nConnection: close\r\n\r\n")
	answer, err := io.ReadAll(c)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		w.t.Fatalf("the server does not respond to %s", id)
	}
	line, _, _ := strings.Cut(string(answer), "\r\n")
	return strings.Join(strings.Fields(line)[:min(2, len(strings.Fields(line)))], " ")
}
