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
