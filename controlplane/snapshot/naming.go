package snapshot

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// naming stands for what the short names in documents mean. It stays the same while services come and go whose names no
// document can have meant another one by; those that a proxy does not see count too.
type naming struct{ _ byte } // not of no size: it is told apart by where it is

// naming is that of the world before, if that still holds.
func (b *build) naming(old, next *world) *naming {
	if old.naming == nil || b.prev.Domain != b.next.Domain || slices.ContainsFunc(apart(old.services, next.services), b.next.renames(next)) {
		return &naming{}
	}
	return old.naming
}

// Renames says whether documents may mean another host by some name because a service, present or past, is there or is not.
func (s *Snapshot) Renames(svc *registry.Service) bool { return s.renames(s.world)(svc) }

func (s *Snapshot) renames(w *world) func(*registry.Service) bool {
	return func(svc *registry.Service) bool {
		return s.Registry.Namesake(svc) || slices.ContainsFunc(svc.Aliases, w.claimed().means) ||
			slices.ContainsFunc(svc.AliasServices, w.claimed().meansAlias)
	}
}

// apart are the services that are in one list only.
func apart(a, b []*registry.Service) []*registry.Service {
	if equalPointers(a, b) {
		return nil
	}
	lists := map[*registry.Service]int{}
	for _, svc := range a {
		lists[svc]++
	}
	for _, svc := range b {
		lists[svc]--
	}
	var out []*registry.Service
	for svc, n := range lists {
		if n != 0 {
			out = append(out, svc)
		}
	}
	return out
}
