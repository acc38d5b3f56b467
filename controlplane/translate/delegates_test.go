package translate_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

const delegatingMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: edge}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: root}
spec: {hosts: [shop.example], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: root}
spec: {hosts: [shop.example], gateways: [mesh, edge/edge], http: [{delegate: {name: part, namespace: parts}}]}
`

func part(exportTo, host string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: part, namespace: parts}\nspec: {exportTo: [%q], http: [{route: [{destination: {host: %s}}]}]}", exportTo, host)
}

var delegatingProxies = []string{
	"router edge.edge 127.193.30.1 istio=edge", "router apart.edge 127.193.30.2 istio=edge HOSTS_APART=yes",
	"sidecar whole.far 127.193.30.3 INTERCEPTION_MODE=REDIRECT", "sidecar apart.far 127.193.30.4 INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
}

// TestDelegateChangesReachRootUsers: a changed delegate affects gateways to which only its root VirtualService is
// bound, and clients to which only the root is exported.
func TestDelegateChangesReachRootUsers(t *testing.T) {
	m := newTestMesh(t, nil, delegatingMesh, part("root", "one.example"))
	for _, step := range []string{part("root", "two.example"), part("elsewhere", "two.example"), part("*", "two.example"), "VirtualService parts/part"} {
		before := m.snap
		change := m.step(step)
		for _, d := range delegatingProxies {
			p, differ := proxy(t, d), 0
			had, has := versions(t, before, p), versions(t, m.snap, p)
			for _, typeURL := range xds.Order {
				differ += len(differing(had[typeURL], has[typeURL]))
			}
			if differ == 0 && !strings.Contains(step, `"*"`) && !strings.HasPrefix(step, "VirtualService") {
				t.Errorf("%s\nfor %s: no resource changed", step, d)
			}
			checkAffected(t, step+"\nfor "+d, had, has, translate.AffectedResources(m.snap, p, change))
		}
	}
}

// TestDelegateShortNamesFollowServices: after a service appears, short names in delegates yield the same result as in a
// new control plane.
func TestDelegateShortNamesFollowServices(t *testing.T) {
	m := newTestMesh(t, nil, delegatingMesh, part("*", "red"))
	for _, step := range []string{
		"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: red, namespace: far}\nspec: {hosts: [red], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}]}",
		"apiVersion: v1\nkind: Service\nmetadata: {name: red, namespace: parts}\nspec: {clusterIP: 240.9.9.1, ports: [{name: http, port: 80}]}",
		"Service parts/red", "ServiceEntry far/red",
	} {
		before := m.snap
		change := m.step(step)
		fresh := snapshot.Build(nil, m.inputs(), nil)
		for _, d := range delegatingProxies {
			p := proxy(t, d)
			has, want := versions(t, m.snap, p), versions(t, fresh, p)
			for _, typeURL := range xds.Order {
				if !maps.Equal(has[typeURL], want[typeURL]) {
					t.Errorf("%s\nfor %s: %s differ from those of a full snapshot: %v", step, d, typeURL, slices.Sorted(slices.Values(differing(has[typeURL], want[typeURL]))))
				}
			}
			checkAffected(t, step+"\nfor "+d, versions(t, before, p), has, translate.AffectedResources(m.snap, p, change))
		}
	}
}

// TestUDPPortsDoNotHideTCPPorts with the same number, in either order. DNS and HTTP/3 services have such ports.
func TestUDPPortsDoNotHideTCPPorts(t *testing.T) {
	for _, ports := range []string{"{port: 80, name: u, protocol: UDP}, {port: 80, name: http}", "{port: 80, name: http}, {port: 80, name: u, protocol: UDP}"} {
		m := newTestMesh(t, nil, "apiVersion: v1\nkind: Service\nmetadata: {name: both, namespace: one}\nspec: {clusterIP: 240.9.9.1, ports: ["+ports+"]}")
		p, name := proxy(t, delegatingProxies[3]), "outbound|80||both.one.svc.cluster.local"
		if named, err := translate.NamedClusters(m.snap, p, []string{name}); err != nil || len(named) != 1 {
			t.Errorf("%s: %d clusters have the name, want 1: %v", ports, len(named), err)
		}
		if all := versions(t, m.snap, p); all[xds.ClusterType][name] == "" || all[xds.VirtualHostType]["80/both.one.svc.cluster.local:80"] == "" {
			t.Errorf("%s: the clusters are %v", ports, all)
		}
	}
}

// TestInvisibleRuleAffectsProxiesThatItHidesRulesFrom: only the most specific DestinationRule of a namespace applies,
// so a rule that is not exported to a proxy may hide one that is.
func TestInvisibleRuleAffectsProxiesThatItHidesRulesFrom(t *testing.T) {
	rule := func(name, more string) string {
		return "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: " + name + ", namespace: root}\nspec: {" + more + "}"
	}
	m := newTestMesh(t, nil, delegatingMesh, rule("all", `host: "*.example", trafficPolicy: {tls: {mode: SIMPLE}}`))
	for _, step := range []string{rule("one", `host: shop.example, exportTo: ["."]`), "DestinationRule root/one"} {
		before := m.snap
		change := m.step(step)
		p := proxy(t, delegatingProxies[3])
		had, has := versions(t, before, p), versions(t, m.snap, p)
		if len(differing(had[xds.ClusterType], has[xds.ClusterType])) == 0 {
			t.Errorf("%s: no cluster changed", step)
		}
		checkAffected(t, step, had, has, translate.AffectedResources(m.snap, p, change))
	}
}
