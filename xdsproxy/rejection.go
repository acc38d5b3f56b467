package xdsproxy

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// maxRejected limits the rejected resources that are recorded per type.
const maxRejected = 64

// ResourceNack is a resource that Envoy rejected and has not accepted in another version since.
type ResourceNack struct {
	Name string `json:"name"`
	// Version is the version of the resource in delta, or of the response in SotW.
	Version string `json:"version,omitempty"`
	// Reason is Envoy's error message about the resource. Count is the number of NACKs that name the resource. Since is
	// the time of the first of these NACKs, and Last the time of the newest.
	Reason string    `json:"reason"`
	Count  uint64    `json:"count"`
	Since  time.Time `json:"since"`
	Last   time.Time `json:"last"`
}

// rejectResources records the resources of the response about that Envoy names in the reason of a NACK. It records at
// most maxRejected resources per type, and updates those that it has recorded.
func (a *typeTracker) rejectResources(about wire.Response, reason string, now time.Time) {
	for _, m := range findMentions(about.Resources, reason) {
		n := a.rejected[m.Name]
		if n == nil {
			if len(a.rejected) >= maxRejected {
				continue // later mentions may be of recorded resources
			}
			if a.rejected == nil {
				a.rejected = make(map[string]*ResourceNack)
			}
			n = &ResourceNack{Name: truncate(m.Name), Since: now}
			a.rejected[m.Name] = n
		}
		n.Version, n.Reason, n.Last = truncate(cmp.Or(m.Version, about.Version)), m.reason, now
		n.Count++
	}
}

// acceptResources deletes the recorded NACKs of the resources that the accepted response about contains or removes. In
// SotW, it deletes the NACKs of all resources of the type.
func (a *typeTracker) acceptResources(v wire.Variant, about wire.Response) {
	if len(a.rejected) == 0 {
		return
	}
	if v == wire.SotW {
		clear(a.rejected)
		return
	}
	for _, r := range about.Resources {
		delete(a.rejected, r.Name)
	}
	for _, name := range about.Removed {
		delete(a.rejected, name)
	}
}

func (a *typeTracker) rejectedResources() []ResourceNack {
	var all []ResourceNack
	for _, n := range a.rejected {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b ResourceNack) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

const (
	// A control plane may send rejected resources again hundreds of times per second. Therefore at most maxLoggedNacks
	// NACKs of a type are logged per nackLogInterval. Within an interval, a NACK with the same reason as the last
	// logged one is not logged again.
	nackLogInterval = time.Minute
	maxLoggedNacks  = 10
)

// nackLogLimiter limits the rate of log lines about NACKs of one type.
type nackLogLimiter struct {
	windowStart time.Time
	logged      int
	reason      string
	suppressed  int
}

// allow reports in ok whether to log a NACK. suppressed is the number of NACKs that were not logged since the last
// logged one.
func (s *nackLogLimiter) allow(reason string, now time.Time) (suppressed int, ok bool) {
	if now.Sub(s.windowStart) >= nackLogInterval || now.Before(s.windowStart) {
		s.windowStart, s.logged = now, 0
	}
	if s.logged == maxLoggedNacks || s.logged > 0 && reason == s.reason {
		s.suppressed++
		return 0, false
	}
	suppressed = s.suppressed
	s.logged, s.reason, s.suppressed = s.logged+1, reason, 0
	return suppressed, true
}

// resourceMention is a resource that Envoy names in the reason of a NACK.
type resourceMention struct {
	wire.Resource
	reason string // the part of the NACK's reason that is about this resource
	at     int    // index of the name in the reason
}

// findMentions returns the resources that Envoy names in the reason of a NACK. For clusters and listeners the reason
// has the format "Error adding/updating cluster(s) a: why, b: why". For most other types it contains no names. If the
// response contains only one resource, the whole reason is about that resource.
func findMentions(resources []wire.Resource, reason string) []resourceMention {
	if len(resources) == 1 {
		return []resourceMention{{Resource: resources[0], reason: reason}}
	}
	var found []resourceMention
	for _, r := range resources {
		if at := indexName(reason, r.Name); at >= 0 {
			found = append(found, resourceMention{Resource: r, at: at})
		}
	}
	slices.SortFunc(found, func(a, b resourceMention) int { return cmp.Compare(a.at, b.at) })
	for i := range found {
		end := len(reason)
		if i+1 < len(found) {
			end = found[i+1].at
		}
		part := reason[found[i].at+len(found[i].Name) : end]
		found[i].reason = strings.Trim(part, ":, \n")
	}
	return found
}

// indexName returns the index of name in text, or -1 if it does not occur. It ignores occurrences inside a longer name.
func indexName(text, name string) int {
	for start, end := range nameOccurrences(text, name) {
		if end == len(text) || !isNameByte(text[end]) {
			return start
		}
	}
	return -1
}

// hasReasonFor reports whether the reason of a NACK contains an error for the resource, in the form "NAME: why".
func hasReasonFor(reason, name string) bool {
	for _, end := range nameOccurrences(reason, name) {
		if strings.HasPrefix(reason[end:], ": ") {
			return true
		}
	}
	return false
}

// nameOccurrences yields the start and end of each occurrence of name in text. It skips an occurrence that is the end of
// a longer name.
func nameOccurrences(text, name string) iter.Seq2[int, int] {
	return func(yield func(start, end int) bool) {
		for from := 0; name != ""; {
			i := strings.Index(text[from:], name)
			if i < 0 {
				return
			}
			start := from + i
			if (start == 0 || !isNameByte(text[start-1])) && !yield(start, start+len(name)) {
				return
			}
			from = start + 1
		}
	}
}

// isNameByte reports whether b can be part of a resource name. Istio uses all of these characters.
func isNameByte(b byte) bool {
	return b == '|' || b == '.' || b == '-' || b == '_' || b == '/' || b == '~' ||
		'0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
