package config

import (
	"cmp"
	"slices"
)

// SortByAge returns a copy of the documents in order of precedence. In Istio, the oldest document takes precedence.
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

// ExplainPrecedence returns the reason why the first of two documents takes precedence over the second, as the end of a
// sentence about the first.
func ExplainPrecedence(first, second *Resource) string {
	if first.Created.Before(second.Created) {
		return "is older"
	}
	return "comes first in name order"
}
