package xdsproxy

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
)

// TestStoredVirtualHostsFollowTheirRoutes: Envoy drops virtual hosts that arrive before their route configuration, and
// waits for those of each route configuration, even if there are none.
func TestStoredVirtualHostsFollowTheirRoutes(t *testing.T) {
	cp := newVersionedControlPlane()
	cp.resources[routeConfigType], cp.resources[virtualHostType] = map[string]string{}, map[string]string{}
	for _, name := range []string{"a", "b", "gone", "ns/c"} {
		cp.set(routeConfigType, name, "1")
	}
	for _, name := range []string{"a/x", "a/y", "ns/c/z", "gone/w"} {
		cp.set(virtualHostType, name, "1")
	}
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeConfigType, ResourceNamesSubscribe: []string{"a", "b", "gone", "ns/c"}})
	envoy.accept(routeConfigType, "")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType})
	envoy.accept(virtualHostType, "")
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a")
	ask := func(routes ...string) {
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeConfigType, ResourceNamesSubscribe: routes})
		envoy.accept(routeConfigType, "")
	}
	hosts := func(sent, removed []string) {
		t.Helper()
		got := envoy.accept(virtualHostType, "")
		var names []string
		for _, r := range got.Resources {
			names = append(names, r.Name)
		}
		if !slices.Equal(names, sent) || !slices.Equal(got.RemovedResources, removed) {
			t.Errorf("Envoy received the virtual hosts %v, removed %v; want %v, removed %v", names, got.RemovedResources, sent, removed)
		}
	}
	ask("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType})
	hosts([]string{"a/x", "a/y"}, nil)
	// A virtual host that Envoy also requests by name is sent once.
	again := newFakeEnvoy(t, relay)
	again.requestAll("a")
	again.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routeConfigType, ResourceNamesSubscribe: []string{"a"}})
	again.accept(routeConfigType, "")
	again.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType, ResourceNamesSubscribe: []string{"*", "a/y"}})
	got := again.accept(virtualHostType, "")
	if len(got.Resources) != 2 || got.Resources[0].Name == got.Resources[1].Name {
		t.Errorf("a client that requested one of them received %v", got.Resources)
	}
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a")
	ask("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: virtualHostType})
	hosts([]string{"a/x", "a/y"}, nil)
	ask("b", "ns/c")
	hosts([]string{"ns/c/z"}, []string{"b/none"})
	if d := cmp.Diff("1", envoy.resources["VirtualHost ns/c/z"]); d != "" {
		t.Error(d)
	}
}
