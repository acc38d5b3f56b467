package config

import (
	"cmp"
	"slices"
)

// SortByAge returns a copy of resources in order of precedence, as in Istio: the oldest document first.
func SortByAge(resources []*Resource) []*Resource {
	out := slices.Clone(resources)
	// Documents in files all have the same age, so they are usually sorted already.
	if !slices.IsSortedFunc(out, CompareAge) {
		slices.SortStableFunc(out, CompareAge)
	}
	return out
}

// CompareAge orders documents by creation time, the oldest first. As in Istio, ties are broken by name, then by
// namespace.
func CompareAge(a, b *Resource) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Namespace, b.Namespace))
}

// ExplainPrecedence returns the reason why first takes precedence over second. The text completes a sentence whose
// subject is first, as in "is older".
func ExplainPrecedence(first, second *Resource) string {
	if first.Created.Before(second.Created) {
		return "is older"
	}
	return "comes first in name order"
}
