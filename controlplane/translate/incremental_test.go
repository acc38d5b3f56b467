package translate_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
)

// editedProxies are the proxies in the meshes that package meshfuzz generates.
var editedProxies = []string{
	"sidecar s0-0.ns0 127.203.40.1 app=s0 version=v0",
	"sidecar s0-1.ns0 127.203.41.1 app=s0 version=v1 INTERCEPTION_MODE=REDIRECT HOSTS_APART=yes",
	"sidecar s1-0.ns1 127.203.42.1 app=s1 INTERCEPTION_MODE=REDIRECT",
	"sidecar s3-0.ns0 127.203.43.1 app=s3 HOSTS_APART=yes",
	"router edge.ns0 127.203.44.1 istio=edge HOSTS_APART=yes",
	"router edge.ns2 127.203.45.1 istio=edge",
	"router proven.ns0 127.203.46.1 istio=edge PROVEN=yes",
}

// editedMesh is a mesh to which edits are applied, and the resource versions of each proxy.
type editedMesh struct {
	*testMesh
	edits   *meshfuzz.Mesh
	proxies []*translate.Proxy
	checker analysis.Checker
	has     []map[string]map[string]string
}

func newEditedMesh(t *testing.T, seed uint64) *editedMesh {
	e := &editedMesh{edits: meshfuzz.New(seed, meshfuzz.Options{Services: 7, Permanent: 2, Disruptive: true}), testMesh: newTestMesh(t, nil)}
	var changed []config.Key
	for _, edit := range e.edits.Documents() {
		changed = append(changed, e.put(edit))
	}
	e.rebuild(changed)
	for _, description := range editedProxies {
		e.proxies = append(e.proxies, proxy(t, description))
		e.has = append(e.has, versions(t, e.snap, e.proxies[len(e.proxies)-1]))
	}
	return e
}

// put applies an edit to the store.
func (e *editedMesh) put(edit meshfuzz.Edit) config.Key {
	if edit.Document == nil {
		e.store.Delete(edit.Key)
	} else {
		e.store.Put(parse(e.t, string(edit.Document))...)
	}
	return edit.Key
}

// step applies some edits as one change, and checks that the change affects all resources that differ for each proxy.
func (e *editedMesh) step(t *testing.T, what string, edits int) {
	t.Helper()
	var changed []config.Key
	for range edits {
		edit := e.edits.Edit()
		what += fmt.Sprintf("\n%s %s", edit.Key, edit.Document)
		changed = append(changed, e.put(edit))
	}
	change := e.rebuild(changed)
	for i, p := range e.proxies {
		after := versions(t, e.snap, p)
		touches := translate.AffectedResources(e.snap, p, change)
		name := what + "\nfor " + editedProxies[i]
		checkAffected(t, name, e.has[i], after, touches)
		checkNamed(t, name, e.snap, p, after, touches)
		e.has[i] = after
	}
}

// compare checks that two full snapshots yield the same resources as the incremental one.
func (e *editedMesh) compare(t *testing.T, what string) {
	t.Helper()
	for range 2 {
		fresh := snapshot.Build(nil, e.inputs(), nil)
		for i, p := range e.proxies {
			want := versions(t, fresh, p)
			for _, typeURL := range xds.Order {
				if !maps.Equal(want[typeURL], e.has[i][typeURL]) {
					t.Errorf("%s, for %s: %s of the full and the incremental snapshot differ: %v", what, editedProxies[i], typeURL, differing(e.has[i][typeURL], want[typeURL]))
				}
			}
		}
		if got, want := e.checker.Check(e.snap), analysis.Check(fresh); !slices.Equal(got, want) {
			t.Errorf("%s: the incremental snapshot has the problems %v, the full one %v", what, got, want)
		}
	}
}

func checkEdits(t *testing.T, seed uint64, steps int) {
	e := newEditedMesh(t, seed)
	for i := range steps {
		what := fmt.Sprintf("seed %d, step %d", seed, i)
		e.step(t, what, 1+i%5/3) // mostly one edit per step
		if i%8 == 7 {
			e.compare(t, what)
		}
		if t.Failed() {
			return
		}
	}
	e.compare(t, fmt.Sprintf("seed %d, at the end", seed))
}

// TestIncrementalSnapshotEqualsFullSnapshot applies random edits of all kinds. The affected resources must include all
// differences.
func TestIncrementalSnapshotEqualsFullSnapshot(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		checkEdits(t, seed, 48)
	}
}

// FuzzEdits runs the same test with any seed.
func FuzzEdits(f *testing.F) {
	f.Add(uint64(100))
	f.Fuzz(func(t *testing.T, seed uint64) { checkEdits(t, seed, 64) })
}
