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

// Change describes the difference between two snapshots. It determines which proxies are affected. It implements
// xds.Change.
type Change struct {
	// Full: everything may differ, because this is the first snapshot or because the mesh configuration changed.
	Full bool
	// Keys contains the documents that were added, changed or removed, or that the store reported as such.
	Keys map[config.Key]struct{}
	// Resources contains the rules and policies among Keys: the old version unless the document is new, and the new
	// version unless it was removed.
	Resources map[config.Key][]*config.Resource
	// Services contains the services that were added, removed or changed, in their old and new versions. Changes of
	// endpoints do not count.
	Services []*registry.Service
	// Endpoints contains the services whose endpoints differ.
	Endpoints []*registry.Service
	// Clusters contains the services in Endpoints whose clusters also differ: in the identities, in whether all
	// endpoints have sidecars, or in addresses that Envoy resolves itself.
	Clusters []*registry.Service
	// Workloads are the namespaces whose workloads differ.
	Workloads []string
	// Nodes: documents of Kubernetes nodes differ.
	Nodes bool
	// Revocations: the revocation lists differ. Snapshots do not contain them.
	Revocations bool
}

var _ xds.Change = Change{}

// Diff returns the difference between two snapshots. prev may be nil. changed contains the keys that were passed to
// Build for next; nil means that all documents may have changed.
func Diff(prev, next *Snapshot, changed []config.Key) Change {
	if prev == nil || changed == nil || prev.Mesh != next.Mesh || prev.Domain != next.Domain {
		return Change{Full: true}
	}
	c := Change{Keys: map[config.Key]struct{}{}, Resources: map[config.Key][]*config.Resource{}}
	for _, key := range changed {
		c.Keys[key] = struct{}{}
		c.Nodes = c.Nodes || key.Kind == config.Node
	}
	for _, kind := range indexed {
		c.diffResources(prev.resources[kind], next.resources[kind])
	}
	c.diffKeys(prev, next)
	c.diffServices(prev, next)
	return c
}

// diffResources compares all resources, not only the resources with changed keys. A store may contain a change before
// it reports the change. Without this comparison, Diff would omit such a change.
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
	c.Workloads = next.Registry.ChangedWorkloads(prev.Registry)
	for _, svc := range prev.Registry.Services {
		if next.instances[svc] == nil {
			c.Services = append(c.Services, svc)
		}
	}
}

// maxMerged limits the elements of a merged change. Changes accumulate while a client does not read. They refer to
// former versions of services and documents, which stay in memory.
const maxMerged = 2000

// Merge returns a change that covers c and the later change next. It is a full change if there would be too many elements.
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
		Workloads: union(c.Workloads, n.Workloads),

		Nodes:       c.Nodes || n.Nodes,
		Revocations: c.Revocations || n.Revocations,
	}
	for _, part := range []Change{c, n} {
		maps.Copy(merged.Keys, part.Keys)
		for k, rs := range part.Resources {
			merged.Resources[k] = union(merged.Resources[k], rs)
		}
	}
	size := len(merged.Keys) + len(merged.Services) + len(merged.Endpoints) + len(merged.Clusters)
	for _, rs := range merged.Resources {
		size += len(rs)
	}
	if size > maxMerged {
		return Change{Full: true}
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
