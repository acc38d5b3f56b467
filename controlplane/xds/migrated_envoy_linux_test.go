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

// foreignServer is a control plane without VHDS. Like istiod, it does not respond to VHDS requests.
type foreignServer struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	first          map[string]proto.Message // the first response by type
	push           chan *discoveryv3.DeltaDiscoveryResponse
	removeListener chan struct{} // closed to remove the listener of the route configuration
	nonces         int
}

func startForeignServer(t *testing.T, addr string, f *foreignServer) (stop func()) {
	t.Helper()
	f.push, f.removeListener = make(chan *discoveryv3.DeltaDiscoveryResponse, 8), make(chan struct{}, 8)
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

func (f *foreignServer) response(typeURL, name string, m proto.Message) *discoveryv3.DeltaDiscoveryResponse {
	f.nonces++
	body, _ := anypb.New(m)
	return &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: fmt.Sprint("foreign", f.nonces), Resources: []*discoveryv3.Resource{
		{Name: name, Version: fmt.Sprint("foreign", f.nonces), Resource: body},
	}}
}

func (f *foreignServer) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
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
				f.removeListener <- struct{}{}
			}
			if first := f.first[r.GetTypeUrl()]; first != nil && len(r.GetResourceNamesSubscribe()) > 0 {
				if err := s.Send(f.response(r.GetTypeUrl(), r.GetResourceNamesSubscribe()[0], first)); err != nil {
					return err
				}
			}
		}
	}
}

// inlineRoutes returns the same route configuration as the foreign control plane sends it.
func inlineRoutes(answer string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{Name: "r1", VirtualHosts: []*routev3.VirtualHost{newVirtualHost("r1", "a.test", answer)}}
}

// moveToForeign moves an Envoy to a foreign control plane, which removes its listener.
func moveToForeign(t *testing.T, p *envoyServer, address string) (f *foreignServer, stop func()) {
	t.Helper()
	expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
	p.awaitSync()
	p.stop()
	f = &foreignServer{first: map[string]proto.Message{RouteType: inlineRoutes("foreign1")}}
	stop = startForeignServer(t, p.addr, f)
	expectBody(t, address, map[string]string{"a.test": "foreign1", "b.test": "404"})
	f.push <- &discoveryv3.DeltaDiscoveryResponse{TypeUrl: ListenerType, Nonce: "gone", RemovedResources: []string{"l1"}}
	expectBody(t, address, map[string]string{"a.test": "no answer"})
	<-f.removeListener
	return f, stop
}

// checkAfterReturn changes the resources of an Envoy that has reconnected, removes its listener for a while, and
// restores it.
func checkAfterReturn(t *testing.T, p *envoyServer, e *envoytest.Envoy, version, address string) {
	t.Helper()
	inSync := func() {
		t.Helper()
		types := 4
		if version != testenv.EnvoyVersion { // this version has no virtual hosts
			types = 3
		}
		p.awaitSyncOf(types)
		if n := len(p.Clients()[0].Types); n != types {
			t.Fatalf("the client has %d types, want %d: %+v", n, types, p.Clients()[0].Types)
		}
	}
	expectBody(t, address, map[string]string{"a.test": "a1", "b.test": "b1"})
	inSync()
	p.change(VirtualHostType, p.state.withVirtualHosts(t, newVirtualHost("r1", "a.test", "a2")).withoutResource(t, VirtualHostType, "r1/b.test"))
	expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "404"})
	inSync()
	there := p.state
	p.change(ListenerType, there.withoutResource(t, ListenerType, "l1"))
	expectBody(t, address, map[string]string{"a.test": "no answer"})
	p.awaitUnsubscribed()
	p.change(ListenerType, there)
	expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "404"})
	inSync()
	p.stop()
	p = startEnvoyServer(t, p.addr, there.withVirtualHosts(t, newVirtualHost("r1", "b.test", "b3")))
	expectBody(t, address, map[string]string{"a.test": "a2", "b.test": "b3"})
	inSync()
	testenv.Eventually(t, "Envoy is as before", func() error { _, err := e.Get("/ready"); return err })
}

// TestEnvoySwitchesToControlPlaneWithoutVHDSAndBack: a route configuration changes from VHDS to inline virtual hosts
// while its listener is removed and restored. From then on an older Envoy receives the route configuration with inline
// virtual hosts, because VHDS would crash it.
func TestEnvoySwitchesToControlPlaneWithoutVHDSAndBack(t *testing.T) {
	for _, version := range vhdsVersions {
		t.Run(version, func(t *testing.T) {
			newVHDSEnvoy(t, version, twoHosts(t), func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
				f, stop := moveToForeign(t, p, address)
				hostname, port, _ := net.SplitHostPort(address)
				var number uint32
				_, _ = fmt.Sscan(port, &number)
				f.push <- f.response(ListenerType, "l1", listener(t, "l1", hostname, number, "r1"))
				expectBody(t, address, map[string]string{"a.test": "foreign1"})
				f.push <- f.response(RouteType, "r1", inlineRoutes("foreign2"))
				expectBody(t, address, map[string]string{"a.test": "foreign2", "b.test": "404"})
				stop()
				again := startEnvoyServer(t, p.addr, p.state)
				again.state = p.state
				checkAfterReturn(t, again, e, version, address)
			})
		})
	}
}

// TestEnvoyReconnectsWithoutItsRoutes: when Envoy reconnects, it no longer has the route configuration with inline
// virtual hosts. It receives the route configuration later.
func TestEnvoyReconnectsWithoutItsRoutes(t *testing.T) {
	for _, version := range vhdsVersions {
		t.Run(version, func(t *testing.T) {
			newVHDSEnvoy(t, version, twoHosts(t), func(t *testing.T, p *envoyServer, e *envoytest.Envoy, address string) {
				_, stop := moveToForeign(t, p, address)
				stop()
				again := startEnvoyServer(t, p.addr, p.state.withoutResource(t, ListenerType, "l1"))
				again.awaitSyncOf(2) // clusters and listeners are in sync
				again.change(ListenerType, p.state)
				checkAfterReturn(t, again, e, version, address)
			})
		})
	}
}

// inlineProxy is the Proxy of an Envoy that cannot switch back from inline virtual hosts to VHDS.
type inlineProxy struct {
	envoySource
	inline bool
}

func (k *inlineProxy) Hooks() Hooks { return Hooks{DisableVHDS: k.disableVHDS} }

func (k *inlineProxy) disableVHDS() bool {
	k.inline = true
	return true
}

func (k *inlineProxy) ComputePushScope(state State, c Change) PushScope {
	scope := k.envoySource.ComputePushScope(state, c)
	if _, ok := scope[VirtualHostType]; ok && k.inline {
		scope.AddAll(RouteType)
	}
	return scope
}

func (k *inlineProxy) Generate(state State, typeURL string, wildcard bool, names []string) ([]*Resource, error) {
	made, err := k.envoySource.Generate(state, typeURL, wildcard, names)
	if err != nil || !k.inline || typeURL != RouteType {
		return made, err
	}
	for i, r := range made {
		var routes routev3.RouteConfiguration
		if err := r.Body.UnmarshalTo(&routes); err != nil {
			return nil, err
		}
		hosts, _ := k.envoySource.Generate(state, VirtualHostType, true, []string{r.Name})
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
