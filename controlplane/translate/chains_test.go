package translate_test

import (
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestNoTwoFilterChainsMatchTheSame where names tell connections to a block of addresses apart that may be of requests too:
// Envoy would refuse the listener.
func TestNoTwoFilterChainsMatchTheSame(t *testing.T) {
	m := newTestMesh(t, nil, alwaysThere)
	m.apply(ofNetworking("VirtualService", "v", "two", "hosts: [b.example], tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: c.example}}]}, {match: [{sniHosts: [b.example]}], route: [{destination: {host: d.example}}]}]"))
	m.apply(ofNetworking("ServiceEntry", "s", "one", "hosts: [b.example], resolution: STATIC, addresses: [240.9.9.0/24], ports: [{number: 80, name: p80, protocol: TLS}, {number: 90, name: p90, protocol: \"\"}]"))
	made, err := generate(m.snap, proxy(t, crowdProxies[0]), xds.ListenerType, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range made {
		l := &listenerv3.Listener{}
		if err := r.Body.UnmarshalTo(l); err != nil {
			t.Fatal(err)
		}
		matches := map[string]string{}
		for _, chain := range l.GetFilterChains() {
			match := chain.GetFilterChainMatch().String()
			if other, twice := matches[match]; twice {
				t.Errorf("%s: %s and %s match the same: %s", l.GetName(), other, chain.GetName(), match)
			}
			matches[match] = chain.GetName()
		}
	}
}
