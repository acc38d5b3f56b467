package xdsproxy

import (
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"
)

// TestVirtualHostsOfTheLastGoodConfigurationComeBehindTheirRoutes: Envoy drops those that come before, and waits for those
// of each of its route configurations, even if there are none.
func TestVirtualHostsOfTheLastGoodConfigurationComeBehindTheirRoutes(t *testing.T) {
	cp := newKeepingControlPlane()
	cp.resources[routesType], cp.resources[hostsType] = map[string]string{}, map[string]string{}
	for _, name := range []string{"a", "b", "gone", "ns/c"} {
		cp.set(routesType, name, "1")
	}
	for _, name := range []string{"a/x", "a/y", "ns/c/z", "gone/w"} {
		cp.set(hostsType, name, "1")
	}
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newEnvoyLike(t, relay)
	envoy.start("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routesType, ResourceNamesSubscribe: []string{"a", "b", "gone", "ns/c"}})
	envoy.take(routesType, "")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType})
	envoy.take(hostsType, "")
	kept(t, relay, time.Time{})
	stop()
	stopControlPlane()

	relay, _ = run(t, config)
	envoy = newEnvoyLike(t, relay)
	envoy.start("a")
	ask := func(routes ...string) {
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routesType, ResourceNamesSubscribe: routes})
		envoy.take(routesType, "")
	}
	hosts := func(sent, removed []string) {
		t.Helper()
		got := envoy.take(hostsType, "")
		var names []string
		for _, r := range got.Resources {
			names = append(names, r.Name)
		}
		if !slices.Equal(names, sent) || !slices.Equal(got.RemovedResources, removed) {
			t.Errorf("Envoy got the virtual hosts %v, without %v; want %v, without %v", names, got.RemovedResources, sent, removed)
		}
	}
	ask("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType})
	hosts([]string{"a/x", "a/y"}, nil)
	// What it asked for by name besides comes once.
	again := newEnvoyLike(t, relay)
	again.start("a")
	again.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: routesType, ResourceNamesSubscribe: []string{"a"}})
	again.take(routesType, "")
	again.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType, ResourceNamesSubscribe: []string{"*", "a/y"}})
	got := again.take(hostsType, "")
	if len(got.Resources) != 2 || got.Resources[0].Name == got.Resources[1].Name {
		t.Errorf("a client that named one of them got %v", got.Resources)
	}
	envoy = newEnvoyLike(t, relay)
	envoy.start("a")
	ask("a")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: hostsType})
	hosts([]string{"a/x", "a/y"}, nil)
	ask("b", "ns/c")
	hosts([]string{"ns/c/z"}, []string{"b/none"})
	if d := cmp.Diff("1", envoy.holds["VirtualHost ns/c/z"]); d != "" {
		t.Error(d)
	}
}
