package xds

import (
	"fmt"
	"net"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/envoytest"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// foreign is a control plane that knows nothing of virtual hosts by themselves, as istiod does not: it is silent when it is
// asked for any.
type foreign struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	first  map[string]proto.Message // by type
	push   chan *discoveryv3.DeltaDiscoveryResponse
	letGo  chan struct{} // of the route configuration
	nonces int
}

func startForeign(t *testing.T, addr string, f *foreign) (stop func()) {
	t.Helper()
	f.push, f.letGo = make(chan *discoveryv3.DeltaDiscoveryResponse, 8), make(chan struct{}, 8)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, f)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	stop = func() { server.Stop(); <-served }
	t.Cleanup(stop)
	return stop
}

func (f *foreign) response(typeURL, name string, m proto.Message) *discoveryv3.DeltaDiscoveryResponse {
	f.nonces++
	body, _ := anypb.New(m)
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: fmt.Sprint("foreign", f.nonces), Resources: []*discoveryv3.Resource{
		{Name: name, Version: fmt.Sprint("foreign", f.nonces), Resource: body},
	}}
}

func (f *foreign) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	requests := make(chan *discoveryv3.DeltaDiscoveryRequest)
	go func() {
		defer close(requests)
		for {
			r, err := s.Recv()
			if err != nil {
				return
			}
			select {
			case requests <- r:
			case <-s.Context().Done():
				return
			}
		}
	}()
	for {
		select {
		case r := <-f.push:
			if err := s.Send(r); err != nil {
				return err
			}
		case r, ok := <-requests:
			if !ok {
				return nil
			}
			if r.GetTypeUrl() == RouteType && len(r.GetResourceNamesUnsubscribe()) > 0 {
				f.letGo <- struct{}{}
			}
			if first := f.first[r.GetTypeUrl()]; first != nil && len(r.GetResourceNamesSubscribe()) > 0 {
				if err := s.Send(f.response(r.GetTypeUrl(), r.GetResourceNamesSubscribe()[0], first)); err != nil {
					return err
				}
			}
		}
	}
}

// TestEnvoyGoesToAControlPlaneWithoutPartsAndComesBack: the same route configuration has its virtual hosts apart, whole, and
// apart again, while its listener goes and comes back. (1.38.3 crashes when it comes back.)
func TestEnvoyGoesToAControlPlaneWithoutPartsAndComesBack(t *testing.T) {
	partsEnvoy(t, testenv.EnvoyVersion, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		p.inSync()
		p.stop()
		whole := func(answer string) *routev3.RouteConfiguration {
			return &routev3.RouteConfiguration{Name: "r1", VirtualHosts: []*routev3.VirtualHost{host("r1", "a.test", answer)}}
		}
		f := &foreign{first: map[string]proto.Message{RouteType: whole("foreign1")}}
		stop := startForeign(t, p.addr, f)
		answers(t, address, map[string]string{"a.test": "foreign1", "b.test": "404"})

		l1 := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: ListenerType, Nonce: "gone", RemovedResources: []string{"l1"}}
		f.push <- l1
		answers(t, address, map[string]string{"a.test": "no answer"})
		<-f.letGo
		hostname, port, _ := net.SplitHostPort(address)
		var number uint32
		_, _ = fmt.Sscan(port, &number)
		f.push <- f.response(ListenerType, "l1", listener(t, "l1", hostname, number, "r1"))
		answers(t, address, map[string]string{"a.test": "foreign1"})
		f.push <- f.response(RouteType, "r1", whole("foreign2"))
		answers(t, address, map[string]string{"a.test": "foreign2", "b.test": "404"})
		stop()

		again := startPlane(t, p.addr, p.world)
		answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
		again.world = p.world
		again.change(VirtualHostType, p.world.hosts(t, host("r1", "a.test", "a2")).without(t, VirtualHostType, "r1/b.test"))
		answers(t, address, map[string]string{"a.test": "a2", "b.test": "404"})
		again.inSync()
		testenv.Eventually(t, "Envoy is as before", func() error { _, err := e.Get("/ready"); return err })
	})
}
