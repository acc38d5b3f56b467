package snapshot

import (
	"iter"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Rules are all documents of the snapshot that are rules and policies, kind by kind, each by namespace and name.
func (s *Snapshot) Rules() iter.Seq[*config.Resource] {
	return func(yield func(*config.Resource) bool) {
		for _, kind := range indexed {
			for _, r := range s.resources[kind] {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Concerns says whether a document that selects workloads by labels selects one with these.
func Concerns(r *config.Resource, labels map[string]string) bool {
	s, ok := selectionOf(r)
	return ok && !s.targeted && Selects(s.labels, labels)
}

// Inputs are what the snapshot was built from, but for the store.
func (s *Snapshot) Inputs() Inputs {
	return Inputs{Mesh: s.given, Domain: s.Domain, Virtual: s.Registry.Options().Virtual, Keys: s.keys, KeysByProxy: s.KeysByProxy}
}
