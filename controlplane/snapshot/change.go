package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// Change is what differs between two snapshots, in terms that say who is touched by it. It implements xds.Change.
type Change struct {
	// Full: anything may differ (the first snapshot, a change of the mesh configuration).
	Full bool
	// Keys are the resources that were, or are said to be, added, changed or removed.
	Keys map[config.Key]struct{}
	// Resources are those of Keys that are rules and policies: each as it was before (unless it is new) and as it is now
	// (unless it is gone).
	Resources map[config.Key][]*config.Resource
	// Services came, went, or changed in anything but their endpoints: as they were and as they are.
	Services []*registry.Service
	// Endpoints are the services whose endpoints differ.
	Endpoints []*registry.Service
	// Clusters are those of Endpoints whose clusters differ too: who may serve them, whether all endpoints have sidecars,
	// or addresses that Envoy resolves by itself.
	Clusters []*registry.Service
}

var _ xds.Change = Change{}

// Diff says what differs between two snapshots. changed names the resources that next was built for; nil is all. prev
// may be nil.
func Diff(prev, next *Snapshot, changed []config.Key) Change {
	if prev == nil || changed == nil || prev.Mesh != next.Mesh || prev.Domain != next.Domain {
		return Change{Full: true}
	}
	c := Change{Keys: map[config.Key]struct{}{}, Resources: map[config.Key][]*config.Resource{}}
	for _, key := range changed {
		c.Keys[key] = struct{}{}
	}
	for _, kind := range indexed {
		c.diffResources(prev.resources[kind], next.resources[kind])
	}
	c.diffKeys(prev, next)
	c.diffServices(prev, next)
	return c
}

// diffResources compares what the two snapshots really have, whatever the keys say: a store may be ahead of its own
// notifications, and what it had lost before it said so would otherwise be in no change at all.
func (c *Change) diffResources(prev, next []*config.Resource) {
	if len(prev) == len(next) && unsafe.SliceData(prev) == unsafe.SliceData(next) {
		return
	}
	for len(prev) > 0 || len(next) > 0 {
		order := 0
		switch {
		case len(prev) == 0:
			order = 1
		case len(next) == 0:
			order = -1
		default:
			order = compareKeys(prev[0].Key, next[0].Key)
		}
		if order == 0 && prev[0] == next[0] {
			prev, next = prev[1:], next[1:]
			continue
		}
		if order <= 0 {
			c.addResource(prev[0])
			prev = prev[1:]
		}
		if order >= 0 {
			c.addResource(next[0])
			next = next[1:]
		}
	}
}

func (c *Change) addResource(r *config.Resource) {
	c.Keys[r.Key] = struct{}{}
	c.Resources[r.Key] = append(c.Resources[r.Key], r)
}

func compareKeys(a, b config.Key) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func (c *Change) diffServices(prev, next *Snapshot) {
	for _, svc := range next.Registry.Services {
		before, now := prev.instances[svc], next.instances[svc]
		if before == nil {
			c.Services = append(c.Services, svc)
			continue
		}
		if before == now {
			continue
		}
		c.Endpoints = append(c.Endpoints, svc)
		if svc.Resolution != registry.Static || !maps.Equal(before.facts, now.facts) {
			c.Clusters = append(c.Clusters, svc)
		}
	}
	if prev.Registry == next.Registry {
		return
	}
	for _, svc := range prev.Registry.Services {
		if next.instances[svc] == nil {
			c.Services = append(c.Services, svc)
		}
	}
}

// Merge gives the change that covers both; next is the later one.
func (c Change) Merge(next xds.Change) xds.Change {
	n, ok := next.(Change)
	if !ok || c.Full || n.Full {
		return Change{Full: true}
	}
	merged := Change{
		Keys:      map[config.Key]struct{}{},
		Resources: map[config.Key][]*config.Resource{},
		Services:  union(c.Services, n.Services),
		Endpoints: union(c.Endpoints, n.Endpoints),
		Clusters:  union(c.Clusters, n.Clusters),
	}
	for _, part := range []Change{c, n} {
		maps.Copy(merged.Keys, part.Keys)
		for k, rs := range part.Resources {
			merged.Resources[k] = union(merged.Resources[k], rs)
		}
	}
	return merged
}

func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	seen := make(map[T]struct{}, len(a))
	for _, v := range a {
		seen[v] = struct{}{}
	}
	for _, v := range b {
		if _, ok := seen[v]; !ok {
			out = append(out, v)
		}
	}
	return out
}
