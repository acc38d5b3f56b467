package config

import (
	"cmp"
	"slices"
)

// SortByAge returns a copy of the documents sorted by age, because in Istio the oldest document takes precedence.
func SortByAge(resources []*Resource) []*Resource {
	out := slices.Clone(resources)
	// Documents in files all have the same age, so they are usually sorted already.
	if !slices.IsSortedFunc(out, CompareAge) {
		slices.SortStableFunc(out, CompareAge)
	}
	return out
}

// CompareAge orders documents by creation time, the oldest first. Ties are broken by namespace and name.
func CompareAge(a, b *Resource) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
