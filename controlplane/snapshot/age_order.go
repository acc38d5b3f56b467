package snapshot

import (
	"cmp"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// sortByAge returns a copy sorted by age, as Istio does where the oldest document wins.
func sortByAge(resources []*config.Resource) []*config.Resource {
	out := slices.Clone(resources)
	if !slices.IsSortedFunc(out, compareAge) { // true if all documents are from files
		slices.SortStableFunc(out, compareAge)
	}
	return out
}

func isOlder(a, b *config.Resource) bool { return compareAge(a, b) < 0 }

func compareAge(a, b *config.Resource) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

func equalPointers[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
