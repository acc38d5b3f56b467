// Package suggest finds the name that a user probably meant, for error messages that suggest a correction.
package suggest

import "strings"

// Name returns the candidate that is most similar to a misspelled name, or "" if none is similar. It ignores case and
// separators.
func Name(written string, among []string) string {
	return ClosestWithin(written, among, max(1, len(written)/3))
}

// ClosestWithin returns the most similar candidate that differs by at most mistakes typing mistakes. It returns "" if
// there is none.
func ClosestWithin(written string, among []string, mistakes int) string {
	best, bestDistance := "", mistakes+1
	folded := fold(written)
	for _, candidate := range among {
		if d := distance(folded, fold(candidate), bestDistance); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

var separators = strings.NewReplacer("_", "", "-", "", ".", "", "/", "")

func fold(name string) string { return strings.ToLower(separators.Replace(name)) }

// distance returns the number of typing mistakes between a and b: missing, additional, changed or swapped letters. If
// there are limit or more, it returns limit.
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
