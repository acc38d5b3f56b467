package xdsproxy

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"
)

// mostRejected bounds the rejected resources that are told apart, of each type.
const mostRejected = 64

// ResourceNack is a resource that Envoy rejected, and has not accepted in another version since.
type ResourceNack struct {
	Name string `json:"name"`
	// Version is the resource's in the delta protocol, and otherwise that of the response it came in.
	Version string `json:"version,omitempty"`
	// Reason is what Envoy said of this resource, Count how often it rejected it, Since when first.
	Reason string    `json:"reason"`
	Count  uint64    `json:"count"`
	Since  time.Time `json:"since"`
	Last   time.Time `json:"last"`
}

// rejectResources finds out which resources of a response Envoy means: it names them in its reason.
func (a *account) rejectResources(about response, reason string, now time.Time) {
	for _, m := range mentioned(about.resources, reason) {
		n := a.rejected[m.name]
		if n == nil {
			if len(a.rejected) >= mostRejected {
				return
			}
			if a.rejected == nil {
				a.rejected = make(map[string]*ResourceNack)
			}
			n = &ResourceNack{Name: shortened(m.name), Since: now}
			a.rejected[m.name] = n
		}
		n.Version, n.Reason, n.Last = shortened(cmp.Or(m.version, about.version)), m.reason, now
		n.Count++
	}
}

// acceptResources forgets what was said of resources that came again, or that are gone.
func (a *account) acceptResources(v variant, about response) {
	if len(a.rejected) == 0 {
		return
	}
	if v == sotw {
		clear(a.rejected)
		return
	}
	for _, r := range about.resources {
		delete(a.rejected, r.name)
	}
	for _, name := range about.removed {
		delete(a.rejected, name)
	}
}

func (a *account) rejectedResources() []ResourceNack {
	var all []ResourceNack
	for _, n := range a.rejected {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b ResourceNack) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

const (
	// A control plane may send again at once what Envoy rejects, hundreds of times a second. In each loggedAgain the log has
	// mostLogged rejections of a type at most, and none with the same reason as the one before it.
	loggedAgain = time.Minute
	mostLogged  = 10
)

// saidOfRejections is what the log has of the rejections of one type.
type saidOfRejections struct {
	began  time.Time
	lines  int
	reason string
	unsaid int
}

// rejection says whether one is to be logged, and how many were not since the last that was.
func (s *saidOfRejections) rejection(reason string, now time.Time) (unsaid int, say bool) {
	if now.Sub(s.began) >= loggedAgain || now.Before(s.began) {
		s.began, s.lines = now, 0
	}
	if s.lines == mostLogged || s.lines > 0 && reason == s.reason {
		s.unsaid++
		return 0, false
	}
	unsaid = s.unsaid
	s.lines, s.reason, s.unsaid = s.lines+1, reason, 0
	return unsaid, true
}

// mention is what a reason says of one resource.
type mention struct {
	resource
	reason string
	at     int
}

// mentioned are the resources that a reason names. Envoy writes "Error adding/updating cluster(s) a: why, b: why"; of most
// types it says only why. A response of one resource can mean no other.
func mentioned(resources []resource, reason string) []mention {
	if len(resources) == 1 {
		return []mention{{resource: resources[0], reason: reason}}
	}
	var found []mention
	for _, r := range resources {
		if at := indexName(reason, r.name); at >= 0 {
			found = append(found, mention{resource: r, at: at})
		}
	}
	slices.SortFunc(found, func(a, b mention) int { return cmp.Compare(a.at, b.at) })
	for i := range found {
		end := len(reason)
		if i+1 < len(found) {
			end = found[i+1].at
		}
		part := reason[found[i].at+len(found[i].name) : end]
		found[i].reason = strings.Trim(part, ":, \n")
	}
	return found
}

// indexName finds a name that stands for itself and is no part of a longer one.
func indexName(text, name string) int {
	for start, end := range places(text, name) {
		if end == len(text) || !inName(text[end]) {
			return start
		}
	}
	return -1
}

// isBlamed says whether a reason tells what is wrong with the resource of that name, and does not only name it, or one with
// a longer name: "Error adding/updating cluster(s) a: why, b: why".
func isBlamed(reason, name string) bool {
	for _, end := range places(reason, name) {
		if strings.HasPrefix(reason[end:], ": ") {
			return true
		}
	}
	return false
}

// places are where a name begins and ends in a text, but for those where it is the end of a longer one.
func places(text, name string) iter.Seq2[int, int] {
	return func(yield func(start, end int) bool) {
		for from := 0; name != ""; {
			i := strings.Index(text[from:], name)
			if i < 0 {
				return
			}
			start := from + i
			if (start == 0 || !inName(text[start-1])) && !yield(start, start+len(name)) {
				return
			}
			from = start + 1
		}
	}
}

// inName says whether a letter may be of a resource's name: Istio's have all of these.
func inName(b byte) bool {
	return b == '|' || b == '.' || b == '-' || b == '_' || b == '/' || b == '~' ||
		'0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
