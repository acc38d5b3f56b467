package analysis_test

import (
	"strings"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// testMesh is a document store and the snapshots that are built from it.
type testMesh struct {
	t       testing.TB
	store   *config.MemoryStore
	inputs  snapshot.Inputs
	snap    *snapshot.Snapshot
	checker analysis.Checker
}

func newTestMesh(t testing.TB, mesh *meshconfig.MeshConfig, documents ...string) *testMesh {
	t.Helper()
	m := &testMesh{t: t, store: config.NewMemoryStore()}
	m.inputs = snapshot.Inputs{Store: m.store, Mesh: mesh}
	for _, d := range documents {
		m.store.Put(parse(t, d)...)
	}
	m.rebuild(nil)
	return m
}

func (m *testMesh) apply(document string) {
	m.t.Helper()
	resources := parse(m.t, document)
	m.store.Put(resources...)
	changed := make([]config.Key, len(resources))
	for i, r := range resources {
		changed[i] = r.Key
	}
	m.rebuild(changed)
}

func (m *testMesh) rebuild(changed []config.Key) { m.snap = snapshot.Build(m.snap, m.inputs, changed) }

func (m *testMesh) check() []config.Problem { return m.checker.Check(m.snap) }

// problems returns the findings as text, one per line.
func problems(m *testMesh) string {
	var lines []string
	for _, p := range m.check() {
		lines = append(lines, p.String())
	}
	return strings.Join(lines, "\n")
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
