package xdsproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) {
	if sockets := os.Getenv(bridgeEnv); sockets != "" {
		runBridge(sockets)
	}
	if spec := os.Getenv(relayProcessEnv); spec != "" {
		runRelayProcess(spec)
	}
	goleak.VerifyTestMain(m)
}

// relayProcessEnv makes the test binary a relay, whose memory can be measured: "SOCKET,CONTROL-PLANE", and optionally
// the directory of its last accepted configuration.
const relayProcessEnv = "PILOTFISH_TEST_RELAY"

const clusterURL = clusterType

// fakeControlPlane is a control plane whose stream handlers the test sets.
type fakeControlPlane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	sotw  func(discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error
	delta func(discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error
}

func (u *fakeControlPlane) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return u.sotw(s)
}

func (u *fakeControlPlane) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return u.delta(s)
}

// listen serves the control plane on the address (port 0 for any) until stop is called or the test ends.
func (u *fakeControlPlane) listen(t *testing.T, address string, config *tls.Config) (at string, stop func()) {
	t.Helper()
	if address == "127.0.0.1:0" {
		address = freeAddress(t) // reserved for this test, so that another control plane can listen on it later
	}
	var listener net.Listener
	testenv.Eventually(t, "listening on "+address, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config)
	}
	server := grpc.NewServer(grpc.Creds(creds), grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, u)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// freeAddress returns an address on which no process listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
}

// start runs a relay until the test ends.
func start(t *testing.T, config Config) *Relay {
	t.Helper()
	if config.Socket == "" {
		config.Socket = filepath.Join(t.TempDir(), "etc", "XDS")
	}
	config.LastGood.saveDelay = testSaveDelay
	if config.Logger == nil {
		log := &testenv.Buffer{}
		config.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("log of the relay:\n%s", log)
			}
		})
	}
	relay, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- relay.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return relay
}

// dialRelay connects as Envoy does.
func dialRelay(t *testing.T, r *Relay) *grpc.ClientConn {
	t.Helper()
	testenv.Eventually(t, "the relay listens", func() error {
		c, err := net.Dial("unix", r.config.Socket)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	conn, err := grpc.NewClient("unix:"+r.config.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

type (
	sotwClient  = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	deltaClient = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
)

func sotwStream(t *testing.T, r *Relay) sotwClient {
	t.Helper()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dialRelay(t, r)).StreamAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func deltaStream(t *testing.T, r *Relay) deltaClient {
	t.Helper()
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(dialRelay(t, r)).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newAnsweringControlPlane returns a SotW control plane that responds to each first request with one resource.
func newAnsweringControlPlane(content []byte) *fakeControlPlane {
	return &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		for nonce := 1; ; {
			request, err := s.Recv()
			if err != nil {
				return err
			}
			if request.ResponseNonce != "" {
				continue
			}
			err = s.Send(&discoveryv3.DiscoveryResponse{
				TypeUrl: request.TypeUrl, VersionInfo: fmt.Sprintf("v%d", nonce), Nonce: fmt.Sprint(nonce),
				Resources: []*anypb.Any{{TypeUrl: request.TypeUrl, Value: content}},
			})
			if err != nil {
				return err
			}
			nonce++
		}
	}}
}

func send(t *testing.T, s sotwClient, request *discoveryv3.DiscoveryRequest) {
	t.Helper()
	if err := s.Send(request); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, s sotwClient) *discoveryv3.DiscoveryResponse {
	t.Helper()
	r, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// waitConnected waits until the relay reports a control plane.
func waitConnected(t *testing.T, r *Relay) {
	t.Helper()
	testenv.Eventually(t, "the relay is connected", func() error {
		if s := r.Status(); !s.Connected {
			return errors.New(s.Reason)
		}
		return nil
	})
}

func typeStatus(r *Relay, typeURL string) TypeStatus {
	for _, s := range r.Status().Types {
		if s.TypeURL == typeURL {
			return s
		}
	}
	return TypeStatus{}
}

// healthOf returns the condition of the Envoy of the active stream.
func healthOf(l *statusTracker) (ok bool, reason string) {
	c := l.condition(0, 0)
	return c.OK, c.Reason
}
