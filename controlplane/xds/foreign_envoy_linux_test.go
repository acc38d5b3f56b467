package xds

import (
	"fmt"
	"net"
	"slices"
	"strings"
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

// wholeRoutes is what the foreign control plane has of the same route configuration.
func wholeRoutes(answer string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "r1", VirtualHosts: []*routev3.VirtualHost{host("r1", "a.test", answer)}}
}

// goAway has an Envoy go from a plane to a foreign control plane, which takes its listener away.
func goAway(t *testing.T, p *plane, address string) (f *foreign, stop func()) {
	t.Helper()
	answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
	p.inSync()
	p.stop()
	f = &foreign{first: map[string]proto.Message{RouteType: wholeRoutes("foreign1")}}
	stop = startForeign(t, p.addr, f)
	answers(t, address, map[string]string{"a.test": "foreign1", "b.test": "404"})
	f.push <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: ListenerType, Nonce: "gone", RemovedResources: []string{"l1"}}
	answers(t, address, map[string]string{"a.test": "no answer"})
	<-f.letGo
	return f, stop
}

// staysRight changes what an Envoy has that came back, takes its listener away for a while, and has it come back again.
func staysRight(t *testing.T, p *plane, e *envoytest.Envoy, version, address string) {
	t.Helper()
	inSync := func() {
		t.Helper()
		types := 4
		if version != testenv.EnvoyVersion { // it has nothing of virtual hosts
			types = 3
		}
		p.inSyncOf(types)
		if n := len(p.Clients()[0].Types); n != types {
			t.Fatalf("the client has %d types, want %d: %+v", n, types, p.Clients()[0].Types)
		}
	}
	answers(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
	inSync()
	p.change(VirtualHostType, p.world.hosts(t, host("r1", "a.test", "a2")).without(t, VirtualHostType, "r1/b.test"))
	answers(t, address, map[string]string{"a.test": "a2", "b.test": "404"})
	inSync()
	there := p.world
	p.change(ListenerType, there.without(t, ListenerType, "l1"))
	answers(t, address, map[string]string{"a.test": "no answer"})
	p.unasked()
	p.change(ListenerType, there)
	answers(t, address, map[string]string{"a.test": "a2", "b.test": "404"})
	inSync()
	p.stop()
	p = startPlane(t, p.addr, there.hosts(t, host("r1", "b.test", "b3")))
	answers(t, address, map[string]string{"a.test": "a2", "b.test": "b3"})
	inSync()
	testenv.Eventually(t, "Envoy is as before", func() error { _, err := e.Get("/ready"); return err })
}

// TestEnvoyGoesToAControlPlaneWithoutPartsAndComesBack: the same route configuration has its virtual hosts apart, and whole,
// while its listener goes and comes back. An older Envoy gets it whole from then on: with parts again it would crash.
func TestEnvoyGoesToAControlPlaneWithoutPartsAndComesBack(t *testing.T) {
	for _, version := range partsVersions {
		t.Run(version, func(t *testing.T) {
			partsEnvoy(t, version, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
				f, stop := goAway(t, p, address)
				hostname, port, _ := net.SplitHostPort(address)
				var number uint32
				_, _ = fmt.Sscan(port, &number)
				f.push <- f.response(ListenerType, "l1", listener(t, "l1", hostname, number, "r1"))
				answers(t, address, map[string]string{"a.test": "foreign1"})
				f.push <- f.response(RouteType, "r1", wholeRoutes("foreign2"))
				answers(t, address, map[string]string{"a.test": "foreign2", "b.test": "404"})
				stop()
				again := startPlane(t, p.addr, p.world)
				again.world = p.world
				staysRight(t, again, e, version, address)
			})
		})
	}
}

// TestEnvoyComesBackWithoutItsRoutes: it no longer has the route configuration that was whole, and gets it later.
func TestEnvoyComesBackWithoutItsRoutes(t *testing.T) {
	for _, version := range partsVersions {
		t.Run(version, func(t *testing.T) {
			partsEnvoy(t, version, twoHosts(t), func(t *testing.T, p *plane, e *envoytest.Envoy, address string) {
				_, stop := goAway(t, p, address)
				stop()
				again := startPlane(t, p.addr, p.world.without(t, ListenerType, "l1"))
				again.inSyncOf(2) // clusters and listeners
				again.change(ListenerType, p.world)
				staysRight(t, again, e, version, address)
			})
		})
	}
}

// wholeKeeper is real for an Envoy that does not go back from whole route configurations.
type wholeKeeper struct {
	real
	whole bool
}

func (k *wholeKeeper) KeepWhole() bool {
	k.whole = true
	return true
}

func (k *wholeKeeper) Affected(state State, c Change) Touches {
	touches := k.real.Affected(state, c)
	if _, ok := touches[VirtualHostType]; ok && k.whole {
		touches.AddAll(RouteType)
	}
	return touches
}

func (k *wholeKeeper) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	made, err := k.real.Generate(state, typeURL, wildcard, names)
	if err != nil || !k.whole || typeURL != RouteType {
		return made, err
	}
	for i, r := range made {
		var routes routev3.RouteConfiguration
		if err := r.Body.UnmarshalTo(&routes); err != nil {
			return nil, err
		}
		hosts, _ := k.real.Generate(state, VirtualHostType, true, []string{r.Name})
		slices.SortFunc(hosts, func(a, b *Resource) int { return strings.Compare(a.Name, b.Name) })
		for _, h := range hosts {
			var one routev3.VirtualHost
			if err := h.Body.UnmarshalTo(&one); err != nil {
				return nil, err
			}
			routes.VirtualHosts = append(routes.VirtualHosts, &one)
		}
		routes.Vhds = nil
		if made[i], err = NewResource(r.Name, &routes); err != nil {
			return nil, err
		}
	}
	return made, nil
}
