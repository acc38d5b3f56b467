package translate

import (
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// Instead is which EnvoyFilters a proxy has in another version, or does without, since its Envoy refused what came of them.
// The zero value and nil have none. Safe for concurrent use.
type Instead struct {
	mu sync.RWMutex
	of map[*config.Resource]*snapshot.EnvoyFilter
}

// Put has another version stand for a filter; nil is none at all, and the filter itself restores it.
func (i *Instead) Put(filter, other *snapshot.EnvoyFilter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if other == filter {
		delete(i.of, filter.Resource)
		return
	}
	if i.of == nil {
		i.of = map[*config.Resource]*snapshot.EnvoyFilter{}
	}
	i.of[filter.Resource] = other
}

// Restore has a filter stand for itself again.
func (i *Instead) Restore(filter *snapshot.EnvoyFilter) { i.Put(filter, filter) }

// Has says whether something else, or nothing, stands for a filter.
func (i *Instead) Has(filter *snapshot.EnvoyFilter) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	_, ok := i.of[filter.Resource]
	return ok
}

// Keep forgets filters that are not there any more.
func (i *Instead) Keep(filters []*snapshot.EnvoyFilter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	there := make(map[*config.Resource]bool, len(filters))
	for _, f := range filters {
		there[f.Resource] = true
	}
	for r := range i.of {
		if !there[r] {
			delete(i.of, r)
		}
	}
}

// apply gives the filters that the proxy has.
func (i *Instead) apply(filters []*snapshot.EnvoyFilter) []*snapshot.EnvoyFilter {
	if i == nil {
		return filters
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	if len(i.of) == 0 {
		return filters
	}
	out := make([]*snapshot.EnvoyFilter, 0, len(filters))
	for _, f := range filters {
		if other, ok := i.of[f.Resource]; ok {
			f = other
		}
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}
