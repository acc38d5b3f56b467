package snapshot

import (
	"cmp"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// sortByAge returns a copy of the documents sorted by age, because in Istio the oldest document takes precedence.
func sortByAge(resources []*config.Resource) []*config.Resource {
	out := slices.Clone(resources)
	// Documents in files all have the same age, so they are usually sorted already.
	if !slices.IsSortedFunc(out, compareAge) {
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
