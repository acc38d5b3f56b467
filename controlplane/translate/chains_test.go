package translate_test

import (
	"strings"
	"testing"
)

// TestNoTwoFilterChainsMatchTheSame where names tell connections to a block of addresses apart that may be of requests too:
// Envoy would refuse the listener.
func TestNoTwoFilterChainsMatchTheSame(t *testing.T) {
	m := newTestMesh(t, nil, alwaysThere)
	m.apply(ofNetworking("VirtualService", "v", "two", "hosts: [b.example], tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: c.example}}]}, {match: [{sniHosts: [b.example]}], route: [{destination: {host: d.example}}]}]"))
	m.apply(ofNetworking("ServiceEntry", "s", "one", "hosts: [b.example], resolution: STATIC, addresses: [240.9.9.0/24], ports: [{number: 80, name: p80, protocol: TLS}, {number: 90, name: p90, protocol: \"\"}]"))
	sound{}.check(t, "", m.snap, proxy(t, crowdProxies[0]))
}

// TestLastFilterChainIsNotRemoved: Envoy would refuse the listener.
func TestLastFilterChainIsNotRemoved(t *testing.T) {
	m := newTestMesh(t, nil, alwaysThere)
	m.apply(envoyFilter("f", "one", "configPatches: [{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 81}}, patch: {operation: REMOVE}}]"))
	sound{}.check(t, "", m.snap, proxy(t, crowdProxies[0]))
	if told := problemTexts(m.snap); len(told) != 1 || !strings.Contains(told[0], "no filter chain is left") {
		t.Errorf("told of: %q", told)
	}
}
