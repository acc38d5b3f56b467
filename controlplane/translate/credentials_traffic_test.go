package translate_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// serveExternalTLS starts a server outside the mesh that requires a certificate of the mesh's CA and returns its
// subject.
func (w *testEnv) serveExternalTLS(address string) {
	w.t.Helper()
	cert, key := w.plane.ca.issue("spiffe://outside/server")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		w.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.plane.ca.pem)
	server := &http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "shown=%s", r.TLS.PeerCertificates[0].SerialNumber)
		}),
	}
	server.SetKeepAlivesEnabled(false) // each request needs a new handshake, which uses the current certificate
	l := tls.NewListener(w.listen(address), &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots})
	go func() { _ = server.Serve(l) }()
	w.t.Cleanup(func() { _ = server.Close() })
}

const outsideRule = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: front}
spec: {hosts: [shop.example.com], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8443}], endpoints: [{address: NET.9.1}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: front}
spec: {host: shop.example.com, workloadSelector: {matchLabels: {app: client}}, trafficPolicy: {tls: {mode: MUTUAL, credentialName: client, sni: shop.example.com}}}
`

// TestSidecarCertificatesFromSecrets: a sidecar uses the certificate of a Secret for the hosts of a DestinationRule. It
// also terminates TLS with such a certificate if its Sidecar specifies that. Without the Secret no connection succeeds.
func TestSidecarCertificatesFromSecrets(t *testing.T) {
	forEachEnvoyVersion(t, 176003, func(t *testing.T, version string, network int) {
		w := newTestEnv(t, version, network, outsideRule, pair, `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: server, namespace: back}
spec: {workloadSelector: {labels: {app: server}}, ingress: [{port: {number: 8443, protocol: HTTPS, name: https}, defaultEndpoint: "127.0.0.1:8080", tls: {mode: MUTUAL, credentialName: server}}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: server, namespace: back}
spec: {mtls: {mode: DISABLE}}
`)
		w.serveExternalTLS("NET.9.1:8443")
		w.serveApp("NET.2.2:8080", "server", nil)
		w.proxy(clientNode, "front/client")
		w.proxy(serverNode, "back/server")
		call := func() httpResult { return w.request(clientPort, "http://shop.example.com/") }
		w.expect(503, "", call)
		authorities := "  ca.crt: |\n" + indent(indent(string(w.plane.ca.pem)))
		secret := func(name, namespace string, serial int64) string {
			return strings.Replace(w.secretOf(name, serial, authorities), "namespace: edge", "namespace: "+namespace, 1)
		}
		w.change(secret("client", "front", 41))
		w.expect(200, "shown=41", call)
		w.change(secret("client", "front", 42))
		w.expect(200, "shown=42", call)
		w.remove(config.Key{Kind: config.Secret, Namespace: "front", Name: "client"})
		w.expect(503, "", call)

		ask := func(certs ...tls.Certificate) func() httpResult {
			return func() httpResult { return w.httpsAt("NET.2.1:8443", "shop.example.com", "shop.example.com", certs) }
		}
		w.expect(0, "", ask(w.clientCertificate(51)))
		if a := w.request("", "http://NET.2.1:8443/x"); a.code == 200 {
			t.Errorf("the port accepts connections although the Secret does not exist: %v", a)
		}
		w.change(secret("server", "back", 43))
		w.expect(200, "server HTTP/1.1 /x", ask(w.clientCertificate(51)))
		w.expect(0, "", ask())
	})
}
