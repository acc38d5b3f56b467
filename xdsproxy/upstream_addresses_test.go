package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

// newLookup returns a resolver of one host.
func newLookup(name string, addresses ...string) lookupFunc {
	return func(_ context.Context, host string) ([]netip.Addr, error) {
		if host != name {
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		}
		var found []netip.Addr
		for _, a := range addresses {
			found = append(found, netip.MustParseAddr(a))
		}
		return found, nil
	}
}

// silentServer starts a server that accepts connections and sends nothing.
func silentServer(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

func TestOneReachableControlPlaneIsSufficient(t *testing.T) {
	alive, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	for range 4 { // the order is random
		relay := start(t, Config{Upstreams: []string{freeAddress(t), alive, freeAddress(t)}, Server: Server{Plaintext: true}})
		stream := sotwStream(t, relay)
		send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
		receive(t, stream)
		if at := relay.Status().Upstream; at != alive {
			t.Errorf("connected to %s, want %s", at, alive)
		}
	}
}

func TestSilentAddressDoesNotBlockOthers(t *testing.T) {
	alive, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	upstreams := []string{silentServer(t, "127.0.0.1:0"), silentServer(t, "127.0.0.1:0"), silentServer(t, "127.0.0.1:0"), alive}
	relay := start(t, Config{
		Upstreams: upstreams, Server: Server{Plaintext: true}, ConnectTimeout: time.Hour, Stagger: 10 * time.Millisecond,
	})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
}

func TestAllAddressesAreTriedWithCertificateForHost(t *testing.T) {
	const name = "istiod.istio-system.svc"
	authority := testpki.New(t, "root")
	roots := filepath.Join(t.TempDir(), "root-cert.pem")
	write(t, roots, authority.PEM())
	alive, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.152.0.2:0", authority.ServerConfig(t, name))
	_, port, _ := net.SplitHostPort(alive)
	relay := start(t, Config{
		Upstreams: []string{name + ":" + port}, Lookup: newLookup(name, "127.152.0.1", "127.152.0.2", "::ffff:127.152.0.2"),
		Server: Server{TLS: TLS{RootFile: roots}},
	})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
	if at, want := relay.Status().Upstream, fmt.Sprintf("%s:%s (%s)", name, port, alive); at != want {
		t.Errorf("connected to %q, want %q", at, want)
	}
}

func TestHostIsResolvedForEachConnection(t *testing.T) {
	const name = "istiod.istio-system.svc"
	alive, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.152.0.2:0", nil)
	_, port, _ := net.SplitHostPort(alive)
	var moved atomic.Bool
	relay := start(t, Config{
		Upstreams: []string{name + ":" + port}, Server: Server{Plaintext: true},
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			if moved.Load() {
				return newLookup(name, "127.152.0.2")(ctx, host)
			}
			return newLookup("other")(ctx, host)
		},
	})
	reasonContains(t, relay, name, "no such host")
	moved.Store(true)
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, stream)
}

func TestLastFailedTargetIsTriedLast(t *testing.T) {
	config := Config{Socket: "XDS", Upstreams: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"}}
	if err := config.setDefaults(); err != nil {
		t.Fatal(err)
	}
	u := newUpstream(config, newStatusTracker(time.Now, slog.New(slog.DiscardHandler)))
	first := map[string]bool{}
	for range 200 {
		u.lastFailed = target{name: "127.0.0.1:2", address: "127.0.0.1:2"}
		found, err := u.resolveTargets(t.Context())
		if err != nil || len(found) != 3 || found[2] != u.lastFailed {
			t.Fatalf("targets %v, %v", found, err)
		}
		first[found[0].address] = true
	}
	if len(first) != 2 {
		t.Errorf("the order is always the same: %v first", first)
	}
}

func TestEachUnreachableControlPlaneIsLoggedOnce(t *testing.T) {
	log := &testenv.Buffer{}
	relay := start(t, Config{
		Upstreams: []string{freeAddress(t), freeAddress(t)}, Server: Server{Plaintext: true},
		MinRetry: time.Millisecond, MaxRetry: time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	failures := func() float64 { return testutil.ToFloat64(relay.tracker.metrics.connectFailures) }
	testenv.Eventually(t, "the relay has made many attempts", func() error {
		if n := failures(); n < 20 {
			return errors.New(fmt.Sprint(n))
		}
		return nil
	})
	if n := strings.Count(log.String(), "not connected"); n != 2 {
		t.Errorf("%d attempts were logged in %d lines, want 2:\n%s", int(failures()), n, log)
	}
}
