package translate_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// localityGenerator generates localities and settings for them.
type localityGenerator struct{ *rand.Rand }

func (p localityGenerator) pick(list ...string) string { return list[p.IntN(len(list))] }

func (p localityGenerator) part() string { return p.pick("a", "b", "c", "*", "") }

func (p localityGenerator) randomLocality() string {
	parts := []string{p.part(), p.part(), p.part()}
	return strings.Join(parts[:1+p.IntN(3)], "/")
}

func (p localityGenerator) shares() string {
	left, out := 100, []string{}
	for range 1 + p.IntN(3) {
		share := p.IntN(left + 1)
		left -= share
		out = append(out, fmt.Sprintf("%q: %d", p.randomLocality(), share))
	}
	return strings.Join(append(out, fmt.Sprintf("%q: %d", p.randomLocality()+"/*", left)), ", ")
}

func (p localityGenerator) setting() string {
	switch p.IntN(3) {
	case 0:
		return fmt.Sprintf("distribute: [{from: %q, to: {%s}}, {from: %q, to: {%s}}]", p.randomLocality(), p.shares(), p.randomLocality(), p.shares())
	case 1:
		return fmt.Sprintf("failover: [{from: %s, to: %s}]", p.pick("a", "b"), p.pick("c", "b"))
	}
	return fmt.Sprintf("failoverPriority: [%s]", p.pick("topology.kubernetes.io/region, topology.kubernetes.io/zone", "tier, topology.istio.io/subzone", "'tier=x', topology.istio.io/network"))
}

// mesh returns a service with count endpoints in random localities.
func (p localityGenerator) mesh(setting string, count int) string {
	var endpoints []string
	for i := range count {
		endpoints = append(endpoints, fmt.Sprintf("{address: 10.0.0.%d, locality: %q, weight: %s, labels: {tier: %s}}", i+1, strings.ReplaceAll(p.randomLocality(), "*", "d"), p.pick("0", "1", "7", "4000000"), p.pick("x", "y")))
	}
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: one}\nspec: {hosts: [s.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [%s]}\n---\n"+
		"apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: s, namespace: one}\nspec: {host: s.example, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}, loadBalancer: {localityLbSetting: {%s}}}}", strings.Join(endpoints, ", "), setting)
}

// TestLocalityPrioritiesHaveNoGaps also checks that with failover no endpoint is missing or duplicate.
func TestLocalityPrioritiesHaveNoGaps(t *testing.T) {
	taken := 0
	for seed := range uint64(400) {
		p := localityGenerator{rand.New(rand.NewPCG(seed, 5))}
		setting, want := p.setting(), 1+p.IntN(6)
		text := p.mesh(setting, want)
		if invalid(text) {
			continue
		}
		taken++
		m := newTestMesh(t, nil, text)
		near := assignment(t, m, "sidecar x.one 127.177.30.1 INTERCEPTION_MODE=REDIRECT LOCALITY="+strings.ReplaceAll(p.randomLocality(), "*", "d"))
		if err := near.ValidateAll(); err != nil {
			t.Errorf("%s\n%v", text, err)
		}
		if got := checkPriorities(t, text, near); got > want || got < want && !strings.HasPrefix(setting, "distribute") {
			t.Errorf("%s\nthe load assignment has %d endpoints, want %d: %v", text, got, want, near)
		}
	}
	if taken < 100 {
		t.Errorf("only %d random settings were valid", taken)
	}
}

// checkPriorities checks a load assignment and returns the number of its endpoints.
func checkPriorities(t *testing.T, what string, a *endpointv3.ClusterLoadAssignment) int {
	t.Helper()
	seen, priorities, highest := map[string]bool{}, map[uint32]bool{}, uint32(0)
	for _, l := range a.GetEndpoints() {
		priorities[l.GetPriority()], highest = true, max(highest, l.GetPriority())
		if len(l.GetLbEndpoints()) == 0 || l.GetLoadBalancingWeight().GetValue() == 0 {
			t.Errorf("%s\na locality has no endpoints or no weight: %v", what, l)
		}
		for _, e := range l.GetLbEndpoints() {
			address := e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()
			if seen[address] {
				t.Errorf("%s\n%s occurs twice: %v", what, address, a)
			}
			seen[address] = true
		}
	}
	if len(priorities) > 0 && int(highest) != len(priorities)-1 {
		t.Errorf("%s\npriorities have gaps: %v", what, a)
	}
	return len(seen)
}

func assignment(t *testing.T, m *testMesh, description string) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	resources, err := generate(m.snap, proxy(t, description), xds.EndpointType, []string{"outbound|80||s.example"})
	if err != nil || len(resources) != 1 {
		t.Fatal(resources, err)
	}
	a := &endpointv3.ClusterLoadAssignment{}
	if err := resources[0].Body.UnmarshalTo(a); err != nil {
		t.Fatal(err)
	}
	return a
}
