package translate_test

import (
	"slices"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
)

// routesOf returns the route configurations of a proxy by name.
func routesOf(t *testing.T, m *testMesh, p *translate.Proxy) map[string]*routev3.RouteConfiguration {
	t.Helper()
	resources, err := translate.Routes(m.snap, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*routev3.RouteConfiguration{}
	for _, r := range resources {
		routes := &routev3.RouteConfiguration{}
		if err := r.Body.UnmarshalTo(routes); err != nil {
			t.Fatal(err)
		}
		if apart := routes.GetVhds() != nil; apart != r.UsesVHDS {
			t.Errorf("%s: UsesVHDS is %v", r.Name, r.UsesVHDS)
		}
		out[r.Name] = routes
	}
	return out
}

// TestVHDSMatchesFullRouteConfigurations: the VHDS resources equal the virtual hosts that an Envoy without VHDS
// receives in its route configurations.
func TestVHDSMatchesFullRouteConfigurations(t *testing.T) {
	m := newTestMesh(t, nil, affectedMesh)
	apart := 0
	for i, step := range append([]string{""}, affectedSteps...) {
		if i > 0 {
			m.step(step)
		}
		for _, description := range affectedProxies {
			p := proxy(t, description)
			if !p.UseVHDS {
				continue
			}
			whole := routesOf(t, m, proxy(t, strings.Replace(description, " HOSTS_APART=yes", "", 1)))
			parts := routesOf(t, m, p)
			hosts, err := translate.VirtualHosts(m.snap, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range hosts {
				host := &routev3.VirtualHost{}
				if err := r.Body.UnmarshalTo(host); err != nil {
					t.Fatal(err)
				}
				if host.GetName() != r.Name {
					t.Fatalf("the virtual host %q is in a resource named %q: Envoy could not remove it", host.GetName(), r.Name)
				}
				at := strings.LastIndexByte(r.Name, '/')
				host.Name = r.Name[at+1:]
				routes := parts[r.Name[:at]]
				if routes.GetVhds() == nil {
					t.Fatalf("%s belongs to a route configuration without VHDS", r.Name)
				}
				routes.VirtualHosts = append(routes.VirtualHosts, host)
				apart++
			}
			for name, want := range whole {
				got := parts[name]
				got.Vhds = nil
				sortHosts(got)
				sortHosts(want)
				if !proto.Equal(got, want) {
					t.Errorf("after %q, for %s, %s differs:\nwith VHDS: %v\nfull: %v", step, description, name, got, want)
				}
			}
			if len(parts) != len(whole) {
				t.Errorf("%d route configurations with VHDS, %d without", len(parts), len(whole))
			}
		}
	}
	if apart == 0 {
		t.Error("no proxy has VHDS resources")
	}
}

// sortHosts sorts the virtual hosts, whose order is irrelevant.
func sortHosts(routes *routev3.RouteConfiguration) {
	slices.SortFunc(routes.VirtualHosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
}
