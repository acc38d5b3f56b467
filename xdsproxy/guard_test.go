package xdsproxy

import (
	"log/slog"
	"os"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/uds"
)

func TestStreamWithoutSecretIsRefused(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	var seen uds.Peer
	guard := &uds.Guard{Secret: uds.NewSecret(), IsExempt: func(p uds.Peer) bool { seen = p; return false }, Logger: slog.New(slog.DiscardHandler)}
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, Guard: guard})
	client := discoveryv3.NewAggregatedDiscoveryServiceClient(dialRelay(t, relay))
	open := func(secret string) sotwClient {
		s, err := client.StreamAggregatedResources(metadata.AppendToOutgoingContext(t.Context(), uds.SecretHeader, secret))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	envoy := open(guard.Secret)
	send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, envoy)
	if _, err := open("guess").Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("with another secret: %v", err)
	}
	if _, err := sotwStream(t, relay).Recv(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("without a secret: %v", err)
	}
	if seen.PID != int32(os.Getpid()) {
		t.Errorf("the guard checks %+v", seen)
	}
	send(t, envoy, &discoveryv3.DiscoveryRequest{TypeUrl: listenerType})
	receive(t, envoy)
}
