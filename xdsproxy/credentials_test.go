package xdsproxy

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// newJWT returns a JWT with the expiry. Its signature is not checked.
func newJWT(end time.Time) []byte {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return []byte(part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"exp":%d}`, end.Unix())) + ".c2ln")
}

// newRecordingControlPlane starts a control plane with TLS that accepts a client certificate of the authority or a
// token. It sends the credentials of each stream to shown.
func newRecordingControlPlane(t *testing.T, authority *testpki.Authority) (address string, shown chan string) {
	t.Helper()
	shown = make(chan string, 100)
	good := newAnsweringControlPlane([]byte("c"))
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		md, _ := metadata.FromIncomingContext(s.Context())
		p, _ := peer.FromContext(s.Context())
		var seen []string
		if info := p.AuthInfo.(credentials.TLSInfo); len(info.State.PeerCertificates) > 0 {
			seen = append(seen, "certificate")
		}
		if len(md.Get("authorization")) > 0 {
			seen = append(seen, "token")
		}
		shown <- strings.Join(seen, " and ")
		if len(seen) == 0 {
			return status.Error(codes.Unauthenticated, "nothing was shown")
		}
		return good.sotw(s)
	}}
	config := authority.ServerConfig(t, "127.0.0.1")
	config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, authority.Pool()
	address, _ = cp.listen(t, "127.0.0.1:0", config)
	return address, shown
}

func TestCertificateTokenOrBothArePresented(t *testing.T) {
	dir := t.TempDir()
	authority := testpki.New(t, "root")
	cert, key := authority.Workload(t, "spiffe://a/ns/b/sa/c")
	file := func(name string, content []byte) string {
		name = filepath.Join(dir, name)
		write(t, name, content)
		return name
	}
	roots, token := file("root-cert.pem", authority.PEM()), file("token", newJWT(time.Now().Add(time.Hour)))
	certFile, keyFile := file("cert-chain.pem", cert), file("key.pem", key)
	for want, server := range map[string]Server{
		"token":                 {TLS: TLS{RootFile: roots}, TokenFile: token},
		"certificate":           {TLS: TLS{RootFile: roots, CertFile: certFile, KeyFile: keyFile}, TokenFile: filepath.Join(dir, "none")},
		"certificate and token": {TLS: TLS{RootFile: roots, CertFile: certFile, KeyFile: keyFile}, TokenFile: token},
	} {
		address, shown := newRecordingControlPlane(t, authority)
		relay := start(t, Config{Upstreams: []string{address}, Server: server})
		stream := sotwStream(t, relay)
		send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
		receive(t, stream)
		if got := <-shown; got != want {
			t.Errorf("the control plane received the credentials %q, want %q", got, want)
		}
		if c := relay.Condition(0); !c.OK || c.Reason != "" {
			t.Errorf("with %s: %+v", want, c)
		}
	}
}

func TestExpiryIsReportedDuringOpenStream(t *testing.T) {
	dir := t.TempDir()
	authority := testpki.New(t, "root")
	roots, token := filepath.Join(dir, "root-cert.pem"), filepath.Join(dir, "istio-token")
	write(t, roots, authority.PEM())
	write(t, token, newJWT(time.Now().Add(1500*time.Millisecond)))
	address, _ := newRecordingControlPlane(t, authority)
	log, registry := &testenv.Buffer{}, prometheus.NewRegistry()
	relay := start(t, Config{
		Upstreams: []string{address}, Server: Server{TLS: TLS{RootFile: roots}, TokenFile: token},
		Logger: slog.New(slog.NewTextHandler(log, nil)), Metrics: registry,
	})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
	testenv.Eventually(t, "the log reports the expired token without a request", func() error {
		if !strings.Contains(log.String(), "expired at") {
			return errors.New(log.String())
		}
		return nil
	})
	if c := relay.Condition(0); !c.OK || !strings.Contains(c.Reason, "the token in "+token+" expired at") || c.Remedy == "" {
		t.Errorf("condition %+v", c)
	}

	next := time.Now().Add(time.Hour)
	write(t, token, newJWT(next))
	if c := relay.Condition(0); !c.OK || c.Reason != "" {
		t.Errorf("with a new token: %+v", c)
	}
	want := fmt.Sprintf(`# HELP pilotfish_xds_credential_expiry_timestamp_seconds Expiry of the agent's credentials for the control plane, in seconds since 1970; 0 if a credential cannot be read.
# TYPE pilotfish_xds_credential_expiry_timestamp_seconds gauge
pilotfish_xds_credential_expiry_timestamp_seconds{credential="token"} %d
`, next.Unix())
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "pilotfish_xds_credential_expiry_timestamp_seconds"); err != nil {
		t.Error(err)
	}
}

func TestExpiryOfBothCredentialsIsReported(t *testing.T) {
	dir := t.TempDir()
	authority := testpki.New(t, "root")
	cert, key := authority.Workload(t, "spiffe://a/ns/b/sa/c")
	files := map[string][]byte{"root": authority.PEM(), "cert": cert, "key": key, "token": newJWT(time.Now().Add(time.Hour))}
	for name, content := range files {
		write(t, filepath.Join(dir, name), content)
	}
	server := Server{
		TLS:       TLS{RootFile: filepath.Join(dir, "root"), CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key")},
		TokenFile: filepath.Join(dir, "token"),
	}
	w := newCredentialWatcher(Config{Server: server, Now: func() time.Time { return time.Now().Add(90 * time.Minute) }, Logger: slog.New(slog.DiscardHandler)})
	for _, want := range []string{server.TLS.CertFile, server.TokenFile} {
		if problem := w.refresh(); !strings.Contains(problem, want) || !strings.Contains(problem, "expired") {
			t.Errorf("problem %q, want %s in it", problem, want)
		}
	}
}
