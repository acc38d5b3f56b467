package xds

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// benchSource is a Source whose resources are created once for all clients, as in the control plane.
type benchSource struct{}

func (s *benchSource) Hooks() Hooks { return Hooks{} }

func (s *benchSource) Connect(context.Context, *corev3.Node, Peer) (Proxy, error) { return s, nil }
func (s *benchSource) ComputePushScope(State, Change) PushScope                   { return PushScope{cds: {All: true}} }
func (s *benchSource) Generate(state State, _ string, _ bool, _ []string) ([]*Resource, error) {
	return state.([]*Resource), nil
}

func benchResources(n int) []*Resource {
	resources := make([]*Resource, n)
	body := make([]byte, 1000)
	for i := range resources {
		resources[i] = &Resource{Name: fmt.Sprintf("outbound|80||service-%d.default.svc.cluster.local", i), Version: "1",
			Body: &anypb.Any{TypeUrl: cds, Value: body}}
		resources[i].encoded = encodeResource(resources[i])
	}
	return resources
}

// BenchmarkOneOfAThousandResources measures the time from a change of one resource of 1,000 until the last client has
// it.
func BenchmarkOneOfAThousandResources(b *testing.B) {
	for _, clients := range []int{100, 400} {
		b.Run(fmt.Sprintf("%d-clients", clients), func(b *testing.B) { benchPush(b, clients) })
	}
}

func benchPush(b *testing.B, clients int) {
	r := newBenchServer(b)
	resources := benchResources(1000)
	r.Push(resources, testChange{cds})
	var got sync.WaitGroup
	got.Add(clients)
	for i := range clients {
		benchClient(b, r, fmt.Sprint(i), &got)
	}
	got.Wait()
	b.ReportAllocs()
	for b.Loop() {
		next := append([]*Resource(nil), resources...)
		changedOne := *next[500]
		changedOne.Version += "+"
		changedOne.encoded = encodeResource(&changedOne)
		next[500] = &changedOne
		resources = next
		got.Add(clients)
		r.Push(resources, testChange{cds})
		got.Wait()
	}
}

func newBenchServer(b *testing.B) *testServer {
	b.Helper()
	server, conn := serveInProcess(b, Config{Source: &benchSource{}})
	return &testServer{Server: server, t: b, conn: conn}
}

// benchClient ACKs all responses and reports each to got.
func benchClient(b *testing.B, r *testServer, node string, got *sync.WaitGroup) {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(r.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		b.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: cds}); err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: cds, ResponseNonce: m.GetNonce()})
			got.Done()
		}
	}()
	b.Cleanup(func() { cancel(); <-done })
}
