package translate_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

const edgeNode = "router edge.back NET.4.1 istio=edge"

// handshakeTLS sends the text in before, then performs a TLS handshake, and returns the connection.
func (w *testEnv) handshakeTLS(address, before string, config *tls.Config) (*tls.Conn, error) {
	raw, err := net.DialTimeout("tcp", w.expandNetwork(address), 10*time.Second)
	if err != nil {
		return nil, err
	}
	w.t.Cleanup(func() { _ = raw.Close() })
	_ = raw.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(raw, before); err != nil {
		return nil, err
	}
	config.InsecureSkipVerify = true
	conn := tls.Client(raw, config)
	return conn, conn.Handshake()
}

// shaken polls until a handshake succeeds, or fails if want is false.
func (w *testEnv) shaken(want bool, address, before string, config *tls.Config) *tls.Conn {
	w.t.Helper()
	var conn *tls.Conn
	eventually(w.t, func() string {
		c, err := w.handshakeTLS(address, before, config.Clone())
		if conn = c; (err == nil) != want {
			return fmt.Sprintf("handshake with %s: %v", address, err)
		}
		return ""
	})
	return conn
}

// The setting meshMTLS applies to mesh TLS, and tlsDefaults to other TLS. If the mesh configures a front proxy,
// connections to a gateway start with a PROXY protocol header.
func TestMeshTLSSettingsAndFrontProxies(t *testing.T) {
	forEachEnvoyVersion(t, 176001, func(t *testing.T, version string, network int) {
		mesh := snapshot.WithDefaults(nil)
		mesh.MeshMTLS = &meshconfig.MeshConfig_TLSConfig{MinProtocolVersion: meshconfig.MeshConfig_TLSConfig_TLSV1_3}
		mesh.TlsDefaults = &meshconfig.MeshConfig_TLSConfig{CipherSuites: []string{"ECDHE-ECDSA-AES256-GCM-SHA384"}, EcdhCurves: []string{"P-384"}}
		mesh.DefaultConfig = &meshconfig.ProxyConfig{GatewayTopology: &meshconfig.Topology{ProxyProtocol: &meshconfig.Topology_ProxyProtocolConfiguration{}}}
		lists := filepath.Join(t.TempDir(), "crl")
		w := newTestEnvWithConfig(t, mesh, version, network, pair, strings.ReplaceAll(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: back}
spec:
  selector: {istio: edge}
  servers:
  - {port: {number: 443, targetPort: 8443, name: https, protocol: HTTPS}, hosts: [shop.example.com], tls: {mode: SIMPLE, serverCertificate: /a, privateKey: /b}}
  - {port: {number: 443, targetPort: 8443, name: mutual, protocol: HTTPS}, hosts: [mutual.example.com], tls: {mode: MUTUAL, serverCertificate: /a, privateKey: /b, caCertificates: /c, caCrl: CRLFILE}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: edge, namespace: back}
spec: {hosts: [shop.example.com, mutual.example.com], gateways: [edge], http: [{route: [{destination: {host: server, port: {number: 80}}}]}]}
`, "CRLFILE", lists))
		if err := os.WriteFile(lists, w.revoking(77), 0o600); err != nil {
			t.Fatal(err)
		}
		w.serveApp("NET.2.2:8080", "server", func(rw http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(rw, "for=%s", r.Header.Get("X-Forwarded-For"))
		})
		w.proxy(serverNode, "back/server")
		w.proxy(clientNode, "front/client")
		w.proxy(edgeNode, "back/edge")

		w.expect(200, "for=", func() httpResult { return w.request(clientPort, serverURL) }) // both sidecars use the same versions
		cert, key := w.plane.ca.issue("spiffe://cluster.local/ns/front/sa/client")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		mine := &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"istio-http/1.1", "http/1.1"}}
		w.shaken(true, "NET.2.1:8080", "", mine)
		older := mine.Clone()
		older.MaxVersion = tls.VersionTLS12
		w.shaken(false, "NET.2.1:8080", "", older)

		const caller = "PROXY TCP4 192.0.2.7 192.0.2.8 1234 443\r\n"
		browser := &tls.Config{ServerName: "shop.example.com", MaxVersion: tls.VersionTLS12, CurvePreferences: []tls.CurveID{tls.CurveP384, tls.CurveP256}}
		conn := w.shaken(true, "NET.4.1:8443", caller, browser)
		if got := conn.ConnectionState().CipherSuite; got != tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 {
			t.Errorf("the cipher suite is %s", tls.CipherSuiteName(got))
		}
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: shop.example.com\r\nConnection: close\r\n\r\n")
		body, err := io.ReadAll(bufio.NewReader(conn))
		if !strings.Contains(string(body), "for=192.0.2.7") {
			t.Errorf("the application does not receive the client's identity: %v %s", err, body)
		}
		w.shaken(false, "NET.4.1:8443", "", browser) // connections without the header are refused
		other := browser.Clone()
		other.CurvePreferences = []tls.CurveID{tls.CurveP256}
		w.shaken(false, "NET.4.1:8443", caller, other)
		other = browser.Clone()
		other.CipherSuites = []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
		w.shaken(false, "NET.4.1:8443", caller, other)

		// Revoked certificates are rejected, others accepted.
		for serial, want := range map[int64]bool{77: false, 78: true} {
			member := browser.Clone()
			member.ServerName, member.Certificates = "mutual.example.com", []tls.Certificate{w.clientCertificate(serial)}
			w.shaken(want, "NET.4.1:8443", caller, member)
		}
	})
}
