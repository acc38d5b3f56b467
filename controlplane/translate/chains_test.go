package translate_test

import (
	"strings"
	"testing"
)

// TestFilterChainMatchesAreUnique has TLS names within an address block of a port without a declared protocol. Envoy
// rejects a listener with duplicate matches.
func TestFilterChainMatchesAreUnique(t *testing.T) {
	m := newTestMesh(t, nil, baseDocuments)
	m.apply(ofNetworking("VirtualService", "v", "two", "hosts: [b.example], tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: c.example}}]}, {match: [{sniHosts: [b.example]}], route: [{destination: {host: d.example}}]}]"))
	m.apply(ofNetworking("ServiceEntry", "s", "one", "hosts: [b.example], resolution: STATIC, addresses: [240.9.9.0/24], ports: [{number: 80, name: p80, protocol: TLS}, {number: 90, name: p90, protocol: \"\"}]"))
	resourceValidator{}.check(t, "", m.snap, proxy(t, randomMeshProxies[0]))
}

// TestLastFilterChainIsNotRemoved: Envoy would reject a listener without filter chains.
func TestLastFilterChainIsNotRemoved(t *testing.T) {
	m := newTestMesh(t, nil, baseDocuments)
	m.apply(envoyFilter("f", "one", "configPatches: [{applyTo: FILTER_CHAIN, match: {context: SIDECAR_OUTBOUND, listener: {portNumber: 81}}, patch: {operation: REMOVE}}]"))
	resourceValidator{}.check(t, "", m.snap, proxy(t, randomMeshProxies[0]))
	if reported := problemTexts(m.snap); len(reported) != 1 || !strings.Contains(reported[0], "the listener has no filter chain") {
		t.Errorf("reported: %q", reported)
	}
}
