package sds

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const envoyBootstrap = `
node: {id: sidecar~127.0.0.1~test.default~default.svc.cluster.local, cluster: test}
static_resources:
  listeners:
  - name: in
    address: {socket_address: {address: 127.0.0.1, port_value: %[1]d}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: backend}
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          require_client_certificate: true
          common_tls_context:
            tls_certificate_sds_secret_configs: [{name: default, sds_config: &sds {initial_fetch_timeout: 0s, resource_api_version: V3, api_config_source: {api_type: %[2]s, transport_api_version: V3, grpc_services: [{envoy_grpc: {cluster_name: sds-grpc}}]}}}]
            validation_context_sds_secret_config: {name: ROOTCA, sds_config: *sds}
  clusters:
  - name: backend
    type: STATIC
    load_assignment: {cluster_name: backend, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %[3]d}}}}]}]}
  - name: sds-grpc
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment: {cluster_name: sds-grpc, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: ./sds}}}}]}]}
`

func TestEnvoyReceivesEachRotatedCertificate(t *testing.T) {
	for _, protocol := range []string{"GRPC", "DELTA_GRPC"} {
		t.Run(protocol, func(t *testing.T) { t.Parallel(); testSuccessors(t, protocol) })
	}
}

func testSuccessors(t *testing.T, protocol string) {
	dir := t.TempDir()
	ca := newAuthority(t)
	ca.life = 24 * time.Hour
	address, _ := ca.listen(t, "127.0.0.1:0", nil)
	clock := newFakeClock()
	config := caConfig(address)
	config.Clock = clock
	source := newSource(t, config)
	stop := serveUntilStopped(t, dir, source)

	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	envoytest.Start(t, testenv.Envoy(t), dir, fmt.Sprintf(envoyBootstrap, port, protocol, backend.Listener.Addr().(*net.TCPAddr).Port))
	visit := func(client *testpki.Authority) (serial string, err error) { return handshake(t, port, client, ca.root) }

	first := nextSerial(t, source, "")
	testenv.Eventually(t, "Envoy serves with the first certificate", func() error { return expectSerial(visit, ca.root, first) })
	stranger := testpki.New(t, "stranger")
	if _, err := visit(stranger); err == nil {
		t.Error("Envoy accepted a client of an unknown root")
	}

	// After an error of the CA, the current certificate is still served.
	ca.set(func(*x509.CertificateRequest) ([]string, error) {
		return nil, status.Error(codes.Unavailable, "starting")
	})
	clock.advance(13 * time.Hour)
	testenv.Eventually(t, "the CA's error is reported", func() error {
		clock.advance(time.Second)
		if _, reason := source.Health(); reason == "" {
			return errors.New("no reason yet")
		}
		return nil
	})
	if err := expectSerial(visit, ca.root, first); err != nil {
		t.Error(err)
	}

	// The new certificate is pushed.
	ca.life = 48 * time.Hour
	ca.set(ca.good)
	second := advanceToRotation(t, clock, source, first)
	testenv.Eventually(t, "Envoy serves with the new certificate", func() error { return expectSerial(visit, ca.root, second) })

	// Envoy uses its certificate while the SDS server is down, and receives the next one after its restart.
	stop()
	if err := expectSerial(visit, ca.root, second); err != nil {
		t.Error(err)
	}
	again := newSource(t, caConfig(address))
	serveUntilStopped(t, dir, again)
	third := nextSerial(t, again, second)
	testenv.Eventually(t, "Envoy serves with the certificate of the new server", func() error { return expectSerial(visit, ca.root, third) })
}

func TestEnvoyTrustsRootAddedAtRuntime(t *testing.T) {
	dir := t.TempDir()
	root, added := testpki.New(t, "root"), testpki.New(t, "added")
	source := newFakeSource(newMaterial(t, root))
	startServer(t, Config{Socket: dir + "/sds", Source: source})
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(backend.Close)
	port := testenv.FreePort(t)
	envoytest.Start(t, testenv.EnvoyOf(t, testenv.OldEnvoyVersion), dir,
		fmt.Sprintf(envoyBootstrap, port, "GRPC", backend.Listener.Addr().(*net.TCPAddr).Port))
	testenv.Eventually(t, "Envoy serves", func() error { _, err := handshake(t, port, root, root); return err })
	if _, err := handshake(t, port, added, root); err == nil {
		t.Fatal("Envoy trusts the root before it is added")
	}
	m := source.Current()
	m.Roots = append(root.PEM(), added.PEM()...)
	source.set(m)
	testenv.Eventually(t, "Envoy accepts a client of the added root", func() error { _, err := handshake(t, port, added, root); return err })
}

// A secret that can never be served is sent as removed, so that Envoy does not wait for it before it starts.
func TestUnknownSecretDoesNotBlockEnvoy(t *testing.T) {
	dir := t.TempDir()
	startServer(t, Config{Socket: dir + "/sds", Source: newFakeSource(newMaterial(t, testpki.New(t, "root")))})
	bootstrap := strings.Replace(fmt.Sprintf(envoyBootstrap, testenv.FreePort(t), "DELTA_GRPC", 1), "{name: default,", `{name: "kubernetes://x",`, 1)
	envoy := envoytest.Start(t, testenv.Envoy(t), dir, bootstrap)
	testenv.Eventually(t, "Envoy is live", func() error {
		if state, err := envoy.Get("/ready"); err != nil || !strings.Contains(state, "LIVE") {
			return fmt.Errorf("%s %w", state, err)
		}
		return nil
	})
}

// serveUntilStopped runs an SDS server with the source, as the agent does.
func serveUntilStopped(t *testing.T, dir string, source Source) (stop func()) {
	t.Helper()
	log, _ := newLogger(t)
	server, err := New(Config{Socket: dir + "/sds", Source: source, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func expectSerial(visit func(*testpki.Authority) (string, error), client *testpki.Authority, want string) error {
	got, err := visit(client)
	if err == nil && got != want {
		err = fmt.Errorf("the certificate is %s, want %s", got, want)
	}
	return err
}

// handshake sends a request with a certificate of the client's authority, and returns the serial number of Envoy's.
func handshake(t *testing.T, port int, client, server *testpki.Authority) (serial string, err error) {
	t.Helper()
	cert, key := client.Workload(t, "spiffe://cluster.local/ns/default/sa/productpage")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		Certificates:       []tls.Certificate{pair},
		InsecureSkipVerify: true, // a SPIFFE certificate has no host name; the chain is verified here:
		VerifyConnection: func(s tls.ConnectionState) error {
			leaf := s.PeerCertificates[0]
			serial = leaf.SerialNumber.String()
			if leaf.URIs[0].String() != identity {
				return fmt.Errorf("Envoy is %s", leaf.URIs[0])
			}
			_, err := leaf.Verify(x509.VerifyOptions{Roots: server.Pool()})
			return err
		},
	}}
	httpClient := http.Client{Timeout: 5 * time.Second, Transport: transport}
	response, err := httpClient.Get(fmt.Sprintf("https://127.0.0.1:%d/", port))
	if err != nil {
		return serial, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.ReadAll(response.Body)
	return serial, err
}
