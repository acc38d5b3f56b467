package snapshot

import (
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// testMesh is a document store and the snapshots that are built from it.
type testMesh struct {
	t      testing.TB
	store  *config.MemoryStore
	inputs Inputs
	*Snapshot
}

func newTestMesh(t testing.TB, mesh *meshconfig.MeshConfig, documents ...string) *testMesh {
	t.Helper()
	m := &testMesh{t: t, store: config.NewMemoryStore()}
	m.inputs = Inputs{Store: m.store, Mesh: mesh}
	for _, d := range documents {
		m.store.Put(parse(t, d)...)
	}
	m.Snapshot = Build(nil, m.inputs, nil)
	return m
}

func (m *testMesh) apply(document string) Change {
	m.t.Helper()
	resources := parse(m.t, document)
	m.store.Put(resources...)
	changed := make([]config.Key, len(resources))
	for i, r := range resources {
		changed[i] = r.Key
	}
	return m.rebuild(changed)
}

func (m *testMesh) remove(keys ...config.Key) Change {
	m.store.Delete(keys...)
	return m.rebuild(keys)
}

func (m *testMesh) rebuild(changed []config.Key) Change {
	prev := m.Snapshot
	m.Snapshot = Build(prev, m.inputs, changed)
	return Diff(prev, m.Snapshot, changed)
}

func (m *testMesh) service(host string) *registry.Service {
	m.t.Helper()
	services := m.Registry.ByHostname(host)
	if len(services) != 1 {
		m.t.Fatalf("%d services %s", len(services), host)
	}
	return services[0]
}

func parse(t testing.TB, document string) []*config.Resource {
	t.Helper()
	resources, problems := config.Parse("mesh.yaml", []byte(document))
	for _, p := range problems {
		if p.Severity == config.Error {
			t.Fatalf("%v\n%s", p, document)
		}
	}
	return resources
}

// service returns a document of kind Service.
func service(name, namespace string) string {
	return `
apiVersion: v1
kind: Service
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec: {selector: {app: ` + name + `}, ports: [{name: http, port: 80}]}
`
}

// workload returns a WorkloadEntry for a service's workload with a sidecar.
func workload(name, namespace, app, address string) string {
	return `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: ` + name + `, namespace: ` + namespace + `}
spec: {address: ` + address + `, serviceAccount: ` + app + `, labels: {app: ` + app + `, security.istio.io/tlsMode: istio}}
`
}
