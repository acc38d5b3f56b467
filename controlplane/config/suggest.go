package config

import (
	"fmt"
	"slices"
	"strings"
)

// nearest finds the name that someone probably meant, or "". Letter case and separators are not held against it.
func nearest(name string, among []string) string {
	best, bestDistance := "", 1+max(1, len(name)/3)
	for _, candidate := range among {
		if d := distance(fold(name), fold(candidate), bestDistance); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

func fold(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "", "/", "").Replace(name))
}

// distance is the number of letters to add, leave out, change or swap with their neighbour; at least limit is just limit.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(last[j]+1, next[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return last[len(b)]
}

// didYouMean is a remedy for a name that does not exist: the nearest that does, or all of them when they are few.
func didYouMean(name string, among []string) string {
	if match := nearest(name, among); match != "" {
		return fmt.Sprintf("did you mean %s?", match)
	}
	return "one of: " + list(among)
}

// list names a number of things in order, cut short where there are too many to read.
func list(names []string) string {
	const most = 16
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return strings.Join(names[:most], ", ") + ", …"
	}
	return strings.Join(names, ", ")
}
