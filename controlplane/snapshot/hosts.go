package snapshot

import (
	"sort"
	"strings"
)

// MatchHost reports whether a pattern ("reviews.default.svc.cluster.local", "*.example.com", "*") matches every host
// that host denotes. host may also be a pattern.
func MatchHost(pattern, host string) bool {
	if pattern == "*" || pattern == host {
		return true
	}
	suffix, wild := strings.CutPrefix(pattern, "*")
	return wild && len(host) > len(suffix) && strings.HasSuffix(host, suffix)
}

// HostsOverlap reports whether a host exists that both patterns match.
func HostsOverlap(a, b string) bool { return MatchHost(a, b) || MatchHost(b, a) }

// hostTable maps hosts to the value of the most specific pattern.
type hostTable[T any] struct {
	exact map[string]T
	// wild contains the patterns with a leading "*", longest first.
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

// Selects reports whether labels contain all labels of a selector. An empty selector selects everything.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// exportedTo reports whether a document that is in the namespace owner is exported to namespace. An empty exportTo
// exports the document to all namespaces.
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
