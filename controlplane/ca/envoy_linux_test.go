package ca

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// workloadEnvoy accepts the client "page" and responds with the identity of the client.
const workloadEnvoy = `
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: %d}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          http_filters:
          - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              response_headers_to_add: [{header: {key: peer, value: "%%DOWNSTREAM_PEER_URI_SAN%%"}}]
              routes: [{match: {prefix: /}, direct_response: {status: 200}}]
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificates: [{certificate_chain: {filename: chain.pem}, private_key: {filename: key.pem}}]
            validation_context:
              trusted_ca: {filename: root.pem}
              match_typed_subject_alt_names: [{san_type: URI, matcher: {exact: spiffe://cluster.local/ns/shop/sa/page}}]
`

func TestEnvoyAcceptsTheAuthoritysCertificates(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		t.Run(version, func(t *testing.T) { testEnvoyAcceptsCertificates(t, version) })
	}
}

func testEnvoyAcceptsCertificates(t *testing.T, version string) {
	s := startServer(t, Options{})
	dir, port := t.TempDir(), testenv.FreePort(t)
	writeIdentity(t, dir, s, s.obtain(t, rsaKey(t, 2048), "shop", "reviews", 3600))
	envoytest.Start(t, testenv.EnvoyOf(t, version), dir, fmt.Sprintf(workloadEnvoy, port))

	page := s.obtain(t, newKey(t), "shop", "page", 3600)
	testenv.Eventually(t, "Envoy lets the caller in and sees who it is", func() error {
		return expectPeer(s, port, "peer: spiffe://cluster.local/ns/shop/sa/page", page)
	})
	stranger := startServer(t, Options{})
	for name, certs := range map[string][]tls.Certificate{
		"no certificate":               nil,
		"another identity":             {s.obtain(t, newKey(t), "shop", "ratings", 3600)},
		"the identity of another CA's": {stranger.obtain(t, newKey(t), "shop", "page", 3600)},
	} {
		if err := expectPeer(s, port, "", certs...); err == nil {
			t.Errorf("Envoy lets in: %s", name)
		}
	}
}

func writeIdentity(t *testing.T, dir string, s *testServer, cert tls.Certificate) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"chain.pem": encodeCertificate(cert.Leaf), "root.pem": s.RootPEM(),
		"key.pem": pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: key}),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// expectPeer sends a request with the client certificates and checks a header of the response.
func expectPeer(s *testServer, port int, header string, certs ...tls.Certificate) error {
	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port), &tls.Config{
		Certificates:       certs,
		InsecureSkipVerify: true, // certificates have no DNS names; expectPeer checks the chain and the SPIFFE ID instead
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if leaf.URIs[0].String() != "spiffe://cluster.local/ns/shop/sa/reviews" {
				return errors.New("the wrong peer")
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: s.signing().pool})
			return err
		},
	})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: reviews\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(answer), "HTTP/1.1 200") || !strings.Contains(string(answer), header) {
		return fmt.Errorf("the answer is %q", answer)
	}
	return nil
}
