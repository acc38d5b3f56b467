package snapshot

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// nameVersion identifies how short names in documents resolve. The pointer remains the same unless an added or removed
// service may change the resolution of a name.
type nameVersion struct{ _ byte } // not empty, so that each value has a unique address

// reuseNameVersion returns the previous version if short names resolve as before, or a new version.
func (b *build) reuseNameVersion(old, next *meshIndex) *nameVersion {
	if old.naming == nil || b.prev.Domain != b.next.Domain || slices.ContainsFunc(symmetricDifference(old.services, next.services), b.next.affectsNames(next)) {
		return &nameVersion{}
	}
	return old.naming
}

// AffectsNames reports whether adding or removing svc can change the host to which a name in a document refers.
func (s *Snapshot) AffectsNames(svc *registry.Service) bool { return s.affectsNames(s.index)(svc) }

func (s *Snapshot) affectsNames(w *meshIndex) func(*registry.Service) bool {
	return func(svc *registry.Service) bool {
		return s.Registry.HasNamesake(svc) || slices.ContainsFunc(svc.Aliases, w.hostDependents().isWritten) ||
			slices.ContainsFunc(svc.AliasServices, w.hostDependents().isAliasWritten)
	}
}

// symmetricDifference returns the services that are in exactly one of the lists.
func symmetricDifference(a, b []*registry.Service) []*registry.Service {
	if slices.Equal(a, b) {
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
