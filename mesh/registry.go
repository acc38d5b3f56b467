package mesh

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Registry is the registry of the topology's mesh as it would be with all workloads ready, for those who look at its
// documents without running it. The addresses are of a range that is kept for examples.
func (t *Topology) Registry() config.Store {
	store := config.NewMemoryStore()
	n := 0
	for _, w := range t.Workloads {
		for range max(w.Replicas, 1) {
			n++
			store.Put(w.entry(fmt.Sprintf("%s-%d", w.Name, n), fmt.Sprintf("198.18.%d.%d", n/250%250, n%250+1)))
		}
	}
	return store
}
