package snapshot

import (
	"sort"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/nearest"
)

// MatchHost says whether a pattern ("reviews.default.svc.cluster.local", "*.example.com", "*") covers a host, which may
// be a pattern itself.
func MatchHost(pattern, host string) bool {
	if pattern == "*" || pattern == host {
		return true
	}
	suffix, wild := strings.CutPrefix(pattern, "*")
	return wild && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
}

// overlapHosts says whether there is a name that both patterns cover.
func overlapHosts(a, b string) bool { return MatchHost(a, b) || MatchHost(b, a) }

// hostTable finds the most specific of many patterns that covers a host.
type hostTable[T any] struct {
	exact map[string]T
	// wild holds the patterns with a leading "*", the longest first.
	wild []string
}

func newHostTable[T any](byPattern map[string]T) hostTable[T] {
	t := hostTable[T]{exact: byPattern}
	for pattern := range byPattern {
		if strings.HasPrefix(pattern, "*") {
			t.wild = append(t.wild, pattern)
		}
	}
	sort.Slice(t.wild, func(i, j int) bool {
		if len(t.wild[i]) != len(t.wild[j]) {
			return len(t.wild[i]) > len(t.wild[j])
		}
		return t.wild[i] < t.wild[j]
	})
	return t
}

func (t hostTable[T]) find(host string) (T, bool) {
	if v, ok := t.exact[host]; ok {
		return v, true
	}
	for _, pattern := range t.wild {
		if MatchHost(pattern, host) {
			return t.exact[pattern], true
		}
	}
	var none T
	return none, false
}

// Selects says whether labels have all that a selector asks for. An empty selector selects everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// exportedTo says whether an exportTo list lets the namespace see what its owner's namespace exports.
func exportedTo(exportTo []string, owner, namespace string) bool {
	if len(exportTo) == 0 {
		return true
	}
	for _, e := range exportTo {
		if e == "*" || e == namespace || e == "." && owner == namespace {
			return true
		}
	}
	return false
}

// nearestHost gives the host that is closest to what was written, or "" when none is close. Of a host it is the first
// part that counts: the rest is long, and the same for many.
func nearestHost(written string, candidates []string) string {
	first, _, _ := strings.Cut(written, ".")
	if len(first) <= 2 {
		return nearest.Within(written, candidates, 1)
	}
	return nearest.Within(written, candidates, max(2, len(first)/3))
}
