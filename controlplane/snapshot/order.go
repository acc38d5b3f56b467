package snapshot

import (
	"sort"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// oldestFirst orders resources as Istio does where the oldest wins; the input is left as it is.
func oldestFirst(resources []*config.Resource) []*config.Resource {
	out := append([]*config.Resource(nil), resources...)
	sort.SliceStable(out, func(i, j int) bool { return older(out[i], out[j]) })
	return out
}

func older(a, b *config.Resource) bool {
	if !a.Created.Equal(b.Created) {
		return a.Created.Before(b.Created)
	}
	if a.Namespace != b.Namespace {
		return a.Namespace < b.Namespace
	}
	return a.Name < b.Name
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
