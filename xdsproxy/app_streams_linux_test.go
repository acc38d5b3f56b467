package xdsproxy

import (
	"fmt"
	"os"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// An application's own xDS stream does not displace Envoy's, and status and health exclude it.
func TestApplicationStreamIsIndependentOfEnvoys(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{
		Upstreams: []string{address}, Server: Server{Plaintext: true},
		IsEnvoy: func(process int32) bool { return int(process) == os.Getpid() },
	})
	envoy := sotwStream(t, relay)
	send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, envoy)
	application, end := openFromOtherProcess(t, relay)
	send(t, application, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	got := receive(t, application)
	send(t, application, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType, ResponseNonce: got.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "no such filter"}})

	another := sotwStream(t, relay) // Envoy's second stream, which replaces its first
	if _, err := envoy.Recv(); status.Code(err) != codes.Aborted {
		t.Errorf("Envoy's older stream ended with %v, want Aborted because of Envoy's newer stream", err)
	}
	send(t, another, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, another)
	send(t, application, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	if r := receive(t, application); r.GetTypeUrl() != clusterURL {
		t.Errorf("the application received %s", r.GetTypeUrl())
	}
	if s := typeStatus(relay, listenerType); s.TypeURL != "" {
		t.Errorf("Envoy's status contains the application's requests: %+v", s)
	}
	if ok, reason := relay.Health(); !ok || reason != "" {
		t.Errorf("health: %v, %s", ok, reason)
	}
	end()
	send(t, another, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	receive(t, another)
}

func TestProxylessApplicationStreamsAreIndependent(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Proxyless: true})
	var streams []sotwClient
	for range 3 {
		streams = append(streams, sotwStream(t, relay))
	}
	other, end := openFromOtherProcess(t, relay)
	defer end()
	for round, typeURL := range []string{listenerType, clusterURL} {
		for i, s := range append(streams, other) {
			send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: typeURL})
			if r := receive(t, s); r.GetTypeUrl() != typeURL {
				t.Errorf("round %d: stream %d received %s", round, i, r.GetTypeUrl())
			}
		}
	}
	if s := relay.Status(); !s.EnvoyConnected {
		t.Errorf("status: %+v", s)
	}
	for _, s := range streams {
		_ = s.CloseSend()
		_, _ = s.Recv()
	}
	send(t, other, &discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/other"})
	receive(t, other)
}

func TestApplicationStreamsAreLimited(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, IsEnvoy: func(int32) bool { return false }})
	var first sotwClient
	for i := range maxClients {
		s := sotwStream(t, relay)
		send(t, s, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
		receive(t, s)
		if i == 0 {
			first = s
		}
	}
	if _, err := sotwStream(t, relay).Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("opening a stream beyond the limit: %v, want ResourceExhausted", err)
	}
	_ = first.CloseSend()
	_, _ = first.Recv()
	testenv.Eventually(t, "a stream can be opened again", func() error {
		s := sotwStream(t, relay)
		if err := s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterURL}); err != nil {
			return err
		}
		if r, err := s.Recv(); err != nil || r.GetTypeUrl() != clusterURL {
			return fmt.Errorf("%v, %w", r, err)
		}
		return nil
	})
}
