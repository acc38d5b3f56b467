package xdsproxy

import (
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

func reasonContains(t *testing.T, relay *Relay, parts ...string) {
	t.Helper()
	testenv.Eventually(t, "the reason contains "+strings.Join(parts, ", "), func() error {
		ok, reason := relay.Health()
		for _, part := range parts {
			if ok || !strings.Contains(reason, part) {
				return errors.New(reason)
			}
		}
		return nil
	})
}

func write(t *testing.T, file string, content []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func TestRootFileIsReadForEachConnection(t *testing.T) {
	dir := t.TempDir()
	old, young := testpki.New(t, "old"), testpki.New(t, "young")
	roots := filepath.Join(dir, "root-cert.pem")
	write(t, roots, old.PEM())
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", young.ServerConfig(t, "istiod.istio-system.svc"))
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{TLS: TLS{RootFile: roots, ServerName: "istiod.istio-system.svc"}}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	reasonContains(t, relay, "unknown authority", roots)

	write(t, roots, append(old.PEM(), young.PEM()...))
	receive(t, stream)
}

func TestCertificateForOtherNameIsNotTrusted(t *testing.T) {
	authority := testpki.New(t, "root")
	roots := filepath.Join(t.TempDir(), "root-cert.pem")
	write(t, roots, authority.PEM())
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", authority.ServerConfig(t, "somebody.else"))
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{TLS: TLS{RootFile: roots, ServerName: "istiod.istio-system.svc"}}})
	sotwStream(t, relay)
	reasonContains(t, relay, "somebody.else", "istiod.istio-system.svc")
}

func TestPlaintextPortIsReportedAsCause(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}})
	reasonContains(t, relay, "plaintext")
}

func TestTokenIsReadForEachStream(t *testing.T) {
	dir := t.TempDir()
	authority := testpki.New(t, "root")
	roots, token := filepath.Join(dir, "root-cert.pem"), filepath.Join(dir, "istio-token")
	write(t, roots, authority.PEM())
	good := newAnsweringControlPlane([]byte("c"))
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		if got := strings.Join(md.Get("authorization"), ","); got != "Bearer second" {
			return status.Error(codes.Unauthenticated, "the token has expired")
		}
		return good.sotw(s)
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", authority.ServerConfig(t, "127.0.0.1"))
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{TLS: TLS{RootFile: roots}, TokenFile: token}})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	reasonContains(t, relay, "the token file "+token+" does not exist")

	write(t, token, []byte("first\n"))
	reasonContains(t, relay, "the token has expired")
	write(t, token, []byte("second\n"))
	receive(t, stream)
}

func TestControlPlaneWithOldTLSVersionIsRefused(t *testing.T) {
	authority := testpki.New(t, "root")
	roots := filepath.Join(t.TempDir(), "root-cert.pem")
	write(t, roots, authority.PEM())
	config := authority.ServerConfig(t, "127.0.0.1")
	config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", config)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{TLS: TLS{RootFile: roots}}})
	reasonContains(t, relay, "protocol version")
}
