package translate

import (
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// FilterOverrides contains, for one proxy, the EnvoyFilters that are replaced by another version or disabled because
// the proxy's Envoy rejected them. The zero value and nil are empty. It is safe for concurrent use.
type FilterOverrides struct {
	mu        sync.RWMutex
	overrides map[*config.Resource]*snapshot.EnvoyFilter
}

// Put replaces a filter by another version. If other is nil, the filter is disabled. If other is the filter itself, its
// override is removed.
func (i *FilterOverrides) Put(filter, other *snapshot.EnvoyFilter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if other == filter {
		delete(i.overrides, filter.Resource)
		return
	}
	if i.overrides == nil {
		i.overrides = map[*config.Resource]*snapshot.EnvoyFilter{}
	}
	i.overrides[filter.Resource] = other
}

// Restore removes a filter's override.
func (i *FilterOverrides) Restore(filter *snapshot.EnvoyFilter) { i.Put(filter, filter) }

// Has reports whether a filter has an override.
func (i *FilterOverrides) Has(filter *snapshot.EnvoyFilter) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	_, ok := i.overrides[filter.Resource]
	return ok
}

// Retain removes the overrides of filters that no longer exist.
func (i *FilterOverrides) Retain(filters []*snapshot.EnvoyFilter) {
	i.mu.Lock()
	defer i.mu.Unlock()
	there := make(map[*config.Resource]bool, len(filters))
	for _, f := range filters {
		there[f.Resource] = true
	}
	for r := range i.overrides {
		if !there[r] {
			delete(i.overrides, r)
		}
	}
}

// apply returns the filters with the overrides applied.
func (i *FilterOverrides) apply(filters []*snapshot.EnvoyFilter) []*snapshot.EnvoyFilter {
	if i == nil {
		return filters
	}
	i.mu.RLock()
	defer i.mu.RUnlock()
	if len(i.overrides) == 0 {
		return filters
	}
	out := make([]*snapshot.EnvoyFilter, 0, len(filters))
	for _, f := range filters {
		if other, ok := i.overrides[f.Resource]; ok {
			f = other
		}
		if f != nil {
			out = append(out, f)
		}
	}
	return out
}
