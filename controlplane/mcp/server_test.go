package mcp

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/dial"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const typeOfRoutes = "networking.istio.io/v1/VirtualService"

// testServer is a server whose streams the test handles.
type testServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	t       testing.TB
	address string
	streams chan *serverStream // the streams of clients, in the order of their arrival
	server  *grpc.Server
}

// serverStream is the delta stream of one client.
type serverStream struct {
	discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
	requests chan *discoveryv3.DeltaDiscoveryRequest
	end      chan struct{}
	close    func()
	header   metadata.MD
}

func (s *testServer) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	c := &serverStream{stream, make(chan *discoveryv3.DeltaDiscoveryRequest, 100_000), make(chan struct{}), nil, nil}
	c.close = sync.OnceFunc(func() { close(c.end) })
	c.header, _ = metadata.FromIncomingContext(stream.Context())
	go func() {
		for {
			r, err := stream.Recv()
			if err != nil {
				close(c.requests)
				return
			}
			c.requests <- r
		}
	}()
	s.streams <- c
	select {
	case <-c.end:
	case <-stream.Context().Done():
	}
	return nil
}

// serve starts the server, at the address of a former one if there is one.
func serve(t testing.TB, address string, service discoveryv3.AggregatedDiscoveryServiceServer, options ...grpc.ServerOption) (string, *grpc.Server) {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
	}
	var listener net.Listener
	testenv.Eventually(t, "the address is free", func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	server := grpc.NewServer(append(options, grpc.MaxSendMsgSize(1<<30))...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, service)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String(), server
}

func newTestServer(t testing.TB, address string, options ...grpc.ServerOption) *testServer {
	t.Helper()
	s := &testServer{t: t, streams: make(chan *serverStream, 100)}
	s.address, s.server = serve(t, address, s, options...)
	return s
}

// accept returns the next stream, after the client has requested all kinds.
func (s *testServer) accept() (*serverStream, map[string]*discoveryv3.DeltaDiscoveryRequest) {
	s.t.Helper()
	c := <-s.streams
	first := map[string]*discoveryv3.DeltaDiscoveryRequest{}
	for len(first) < len(config.IstioKinds()) {
		r, ok := <-c.requests
		if !ok {
			s.t.Fatal("the stream ended")
		}
		first[r.GetTypeUrl()] = r
	}
	return c, first
}

// answerAll sends an empty response for all kinds but routes, and waits for the ACKs.
func (c *serverStream) answerAll(t testing.TB) {
	t.Helper()
	for _, kind := range config.IstioKinds() {
		if url := TypeURL(kind); url != typeOfRoutes {
			c.send(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: url, Nonce: "initial-" + url})
		}
	}
}

// send sends a response and returns the client's answer to it.
func (c *serverStream) send(t testing.TB, r *discoveryv3.DeltaDiscoveryResponse) *discoveryv3.DeltaDiscoveryRequest {
	t.Helper()
	if err := c.Send(r); err != nil {
		t.Fatal(err)
	}
	for answer := range c.requests {
		if answer.GetResponseNonce() == r.GetNonce() {
			return answer
		}
	}
	t.Fatal("the stream ended")
	return nil
}

// routes is a response with these routes and removed names.
func routes(t testing.TB, nonce string, resources []*discoveryv3.Resource, removed ...string) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeOfRoutes, Nonce: nonce, Resources: resources, RemovedResources: removed}
}

// route is a document for one host. A negative weight makes it invalid.
func route(t testing.TB, name, version, host string, weight int32) *discoveryv3.Resource {
	t.Helper()
	return &discoveryv3.Resource{Name: name, Version: version, Resource: pack(t, name, &networking.VirtualService{
		Hosts: []string{host}, Http: []*networking.HTTPRoute{{Route: []*networking.HTTPRouteDestination{{Destination: &networking.Destination{Host: host}, Weight: weight}}}},
	})}
}

// runSource runs a source until the test ends.
func runSource(t testing.TB, address string, server dial.Server) *Source {
	t.Helper()
	s := New(Config{Address: address, Server: server, Namespace: "istio-system", Metrics: NewMetrics(prometheus.NewRegistry())})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended with %v", err)
		}
	})
	return s
}

// hostsOf returns the hosts of the source's routes, sorted by the names of the documents.
func hostsOf(s *Source) []string {
	var hosts []string
	for _, r := range s.List(config.VirtualService) {
		hosts = append(hosts, r.Spec.(*networking.VirtualService).GetHosts()...)
	}
	return slices.Clip(hosts)
}
