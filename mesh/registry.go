package mesh

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Registry returns the registry as it would be with all workloads ready, to analyze documents without running the mesh.
// The addresses are from a range reserved for benchmarks (RFC 2544).
func (t *Topology) Registry() config.Store {
	store := config.NewMemoryStore()
	n := 0
	for _, w := range t.Workloads {
		for range max(w.Replicas, 1) {
			n++
			store.Put(w.workloadEntry(fmt.Sprintf("%s-%d", w.Name, n), fmt.Sprintf("198.18.%d.%d", n/250%250, n%250+1)))
		}
	}
	return store
}
