package meshfuzz_test

import (
	"bytes"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/meshfuzz"
)

// TestEveryEditIsValid: the control plane would ignore an invalid document, so the edit would test nothing.
func TestEveryEditIsValid(t *testing.T) {
	for _, o := range []meshfuzz.Options{{Permanent: 4}, {Permanent: 2, Workloads: true}, {Permanent: 2, Disruptive: true}} {
		m := meshfuzz.New(1, o)
		edits := m.Documents()
		for range 3000 {
			edits = append(edits, m.Edit())
		}
		kinds := map[config.Kind]bool{}
		for _, e := range edits {
			if e.Document == nil {
				continue
			}
			resources, problems := config.Parse(e.File(), e.Document)
			for _, p := range problems {
				if p.Severity == config.Error {
					t.Errorf("%v\n%s", p, e.Document)
				}
			}
			if len(resources) != 1 || resources[0].Key != e.Key {
				t.Fatalf("%s is %v", e.Document, resources)
			}
			kinds[e.Key.Kind] = true
		}
		if want := len(config.Kinds()); o.Disruptive && len(kinds) < want {
			t.Errorf("%d kinds of %d are edited: %v", len(kinds), want, kinds)
		}
	}
}

// TestSameSeedMakesTheSameEdits: a failure must be reproducible from its seed.
func TestSameSeedMakesTheSameEdits(t *testing.T) {
	a, b := meshfuzz.New(5, meshfuzz.Options{Disruptive: true}), meshfuzz.New(5, meshfuzz.Options{Disruptive: true})
	for range 500 {
		x, y := a.Edit(), b.Edit()
		if x.Key != y.Key || !bytes.Equal(x.Document, y.Document) {
			t.Fatalf("%v %s and %v %s", x.Key, x.Document, y.Key, y.Document)
		}
	}
}
