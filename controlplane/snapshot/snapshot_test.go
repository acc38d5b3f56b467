package snapshot

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestUnchangedPartsAreShared: the next snapshot contains the same objects for unchanged parts.
func TestUnchangedPartsAreShared(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"), service("b", "one"), workload("a-1", "one", "a", "127.0.0.1"), workload("b-1", "one", "b", "127.0.0.2"), `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: one}
spec: {hosts: [a], exportTo: ["."], http: [{route: [{destination: {host: b}}]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: b, namespace: one}
spec: {host: b, subsets: [{name: v1}]}
`)
	a, b := m.service("a.one.svc.cluster.local"), m.service("b.one.svc.cluster.local")
	one, two := m.Scope("one", nil), m.Scope("two", nil)
	rule := one.DestinationRule(b)
	before := m.Snapshot

	m.apply(workload("a-2", "one", "a", "127.0.0.3"))
	if m.Instances(a) == before.Instances(a) {
		t.Error("the instances of a are unchanged although it has one more endpoint")
	}
	if m.Instances(b) != before.Instances(b) {
		t.Error("the instances of b are new although only a has one more endpoint")
	}
	if m.Instances(a).Facts(80) != before.Instances(a).Facts(80) {
		t.Error("the facts of a are new although the new endpoint has the same properties")
	}
	if m.Scope("one", nil) != one || m.Scope("two", nil) != two {
		t.Error("another endpoint created a new scope")
	}
	if m.peerAuth != before.peerAuth || m.authz != before.authz || m.index != before.index {
		t.Error("another endpoint rebuilt indexes that do not depend on endpoints")
	}

	m.apply(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: one}
spec: {hosts: [a], exportTo: ["."], http: [{timeout: 1s, route: [{destination: {host: b}}]}]}
`)
	if m.Scope("one", nil) == one {
		t.Error("the scope that sees the changed rule is the old one")
	}
	if m.Scope("two", nil) != two {
		t.Error("the scope that does not see the rule is new")
	}
	if m.Scope("one", nil).DestinationRule(b) != rule {
		t.Error("the DestinationRule is new although only a VirtualService changed")
	}
	if m.Registry != before.Registry && m.Instances(b) != before.Instances(b) {
		t.Error("a changed rule rebuilt the instances")
	}
}

func TestIncrementalSnapshotEqualsFullBuild(t *testing.T) {
	documents := []string{
		service("a", "one"), service("b", "two"), workload("a-1", "one", "a", "127.0.0.1"), `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: one}
spec: {egress: [{hosts: ["./*"]}]}
`, `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: one}
spec: {mtls: {mode: DISABLE}}
`}
	whole := newTestMesh(t, nil, documents...)
	steps := newTestMesh(t, nil)
	for _, d := range documents {
		steps.Scope("one", nil) // as for a connected proxy
		steps.apply(d)
	}
	for _, m := range []*testMesh{whole, steps} {
		scope := m.Scope("one", nil)
		if len(scope.Services) != 1 || scope.Services[0].Hostname != "a.one.svc.cluster.local" {
			t.Errorf("the scope contains the services %v", scope.Services)
		}
		if in := m.Instances(m.service("a.one.svc.cluster.local")); len(in.Endpoints) != 1 || in.Endpoints[0].MTLS {
			t.Errorf("instances: %+v", in.Endpoints)
		}
	}
}

func TestChangeOfMeshConfigurationIsFull(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"))
	m.inputs.Mesh = &meshconfig.MeshConfig{TrustDomain: "example.org"}
	if c := m.rebuild([]config.Key{}); !c.Full {
		t.Errorf("change: %+v", c)
	}
	if m.Mesh.GetTrustDomain() != "example.org" || m.Mesh.GetRootNamespace() != "istio-system" {
		t.Errorf("mesh: %v", m.Mesh)
	}
}

func TestDiffDistinguishesEndpointsClustersAndServices(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"), workload("a-1", "one", "a", "127.0.0.1"))
	c := m.apply(workload("a-2", "one", "a", "127.0.0.2"))
	if len(c.Endpoints) != 1 || len(c.Clusters) != 0 || len(c.Services) != 0 {
		t.Errorf("the change for one more endpoint is %+v", c)
	}
	c = m.apply(`
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a-3, namespace: one}
spec: {address: 127.0.0.3, labels: {app: a}}
`)
	if len(c.Endpoints) != 1 || len(c.Clusters) != 1 || len(c.Services) != 0 {
		t.Errorf("the change for an endpoint without a sidecar is %+v", c)
	}
	if c = m.apply(service("b", "one")); len(c.Services) != 1 || len(c.Endpoints) != 0 {
		t.Errorf("the change for an added service is %+v", c)
	}
	if c = m.remove(config.Key{Kind: config.Service, Namespace: "one", Name: "b"}); len(c.Services) != 1 {
		t.Errorf("the change for a removed service is %+v", c)
	}
	c = m.apply(`
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: DISABLE}}
`)
	if len(c.Endpoints) != 1 || len(c.Clusters) != 1 {
		t.Errorf("the change for disabled mutual TLS is %+v", c)
	}
}

// TestChangeBeforeNotificationIsNotMissed: a document is removed while a snapshot for another change is built. The
// notification arrives later, when the snapshots no longer differ in this document.
func TestChangeBeforeNotificationIsNotMissed(t *testing.T) {
	gateway := func(name string) string {
		return `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: ` + name + `, namespace: one}
spec: {selector: {istio: g}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`
	}
	gone := config.Key{Kind: config.Gateway, Namespace: "one", Name: "gone"}
	m := newTestMesh(t, nil, gateway("gone"), gateway("stays"))
	m.store.Delete(gone)
	if c := m.apply(gateway("new")); len(c.Resources[gone]) != 1 {
		t.Errorf("the change in which the document disappeared is %+v", c)
	}
	if c := m.rebuild([]config.Key{gone}); len(c.Resources) != 0 {
		t.Errorf("the change with the notification of the removal is %+v", c)
	}
}

func TestMergedChangeCoversBoth(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"))
	first := m.apply(service("b", "one"))
	second := m.apply(`
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: one}
spec: {selector: {istio: g}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
`)
	third := m.remove(config.Key{Kind: config.Gateway, Namespace: "one", Name: "g"})
	merged := first.Merge(second).Merge(third).(Change)
	gateway := config.Key{Kind: config.Gateway, Namespace: "one", Name: "g"}
	if len(merged.Keys) != 2 || len(merged.Services) != 1 || len(merged.Resources[gateway]) != 1 || len(merged.Resources) != 1 {
		t.Errorf("merged: %+v", merged)
	}
	if !first.Merge(Change{Full: true}).(Change).Full {
		t.Error("merging lost the full change")
	}
}

func TestMergedChangesOfManyServicesAreFull(t *testing.T) {
	var merged xds.Change = Change{}
	for n := range maxMerged + 1 {
		if merged.(Change).Full {
			t.Fatalf("%d services are a full change", n)
		}
		merged = merged.Merge(Change{Services: []*registry.Service{{}}})
	}
	if got := merged.(Change); !got.Full || got.Services != nil {
		t.Errorf("%d services are not a full change: %d are in memory", maxMerged+1, len(got.Services))
	}
}

func TestFactsContainIdentitiesAndAllMTLS(t *testing.T) {
	m := newTestMesh(t, nil, service("a", "one"), `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: one}
spec: {hosts: [out.example.com], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 1.2.3.4, labels: {security.istio.io/tlsMode: istio}}]}
`)
	facts := func() *Facts { return m.Instances(m.service("a.one.svc.cluster.local")).Facts(80) }
	if f := facts(); !f.AllMTLS || len(f.Identities) != 0 {
		t.Errorf("the facts of a mesh service without endpoints are %+v", f)
	}
	m.apply(workload("a-1", "one", "a", "127.0.0.1"))
	if f := facts(); !f.AllMTLS || len(f.Identities) != 1 || f.Identities[0] != "spiffe://cluster.local/ns/one/sa/a" {
		t.Errorf("the facts with one sidecar are %+v", f)
	}
	m.apply(`
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a-2, namespace: one}
spec: {address: 127.0.0.2, labels: {app: a, security.istio.io/tlsMode: istio}}
`)
	if f := facts(); !f.AllMTLS || len(f.Identities) != 0 {
		t.Errorf("the facts with a sidecar of unknown identity are %+v", f)
	}
	if f := m.Instances(m.service("out.example.com")).Facts(80); f.AllMTLS {
		t.Errorf("the facts of a service outside the mesh are %+v", f)
	}
	m.apply(service("gate", "one") + "---\n" + `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: gate, namespace: one}
spec: {address: 127.0.0.3, serviceAccount: gate, labels: {app: gate, security.istio.io/tlsMode: disabled}}
`)
	if f := m.Instances(m.service("gate.one.svc.cluster.local")).Facts(80); f.AllMTLS || len(f.Identities) != 1 || f.Identities[0] != "spiffe://cluster.local/ns/one/sa/gate" {
		t.Errorf("the facts of a gateway, for which a rule may require mesh TLS, are %+v", f)
	}
}

func TestCacheEvictsOnlyUnusedEntries(t *testing.T) {
	c := newCache()
	made := 0
	get := func(key int) { _, _ = c.Get(key, func() (*xds.Resource, error) { made++; return nil, nil }) }
	for i := range 10 * minCacheLimit {
		get(-1) // uses the entry continuously
		get(i)
	}
	if made != 10*minCacheLimit+1 {
		t.Errorf("the entry in use was built %d times", made-10*minCacheLimit)
	}
	if n := c.Len(); n > minCacheLimit {
		t.Errorf("%d entries are cached although only one is in use", n)
	}
}

// TestCacheLimitFollowsExpectedEntries: entries remain cached while they are unused, so that nothing is built again
// when all proxies reconnect.
func TestCacheLimitFollowsExpectedEntries(t *testing.T) {
	c := newCache()
	c.setExpected(20_000)
	made := 0
	for range 3 {
		for i := range 20_000 {
			_, _ = c.Get(i, func() (*xds.Resource, error) { made++; return nil, nil })
		}
	}
	if made != 20_000 {
		t.Errorf("%d of 20000 entries were built again", made)
	}
}
