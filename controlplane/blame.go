package controlplane

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxBlamed is how many documents are named for one rejection: beyond that it is none in particular.
const maxBlamed = 5

// maxRemembered is how many changed documents are remembered about; then only those of the last change are.
const maxRemembered = 20_000

// journal remembers when documents changed last, so that the likeliest cause of a rejection can be named first.
type journal struct {
	mu      sync.Mutex
	changed map[config.Key]time.Time

	versions filterVersions
}

func (j *journal) note(keys []config.Key, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = map[config.Key]time.Time{}
	}
	for _, k := range keys {
		j.changed[k] = at
	}
	if len(j.changed) > maxRemembered { // workloads come under ever new names
		maps.DeleteFunc(j.changed, func(_ config.Key, changed time.Time) bool { return changed.Before(at) })
	}
}

// after gives when a document changed, if that was not before since.
func (j *journal) after(key config.Key, since time.Time) (time.Time, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.changed[key]
	return at, ok && !at.Before(since)
}

// suspect is a document that may be why a client rejected a resource.
type suspect struct {
	translate.Cause
	changed      time.Time // zero: not since the client last accepted anything of the type
	field, value string    // that the reason quotes
}

func (s suspect) rank() int {
	rank := 0
	if !s.changed.IsZero() {
		rank += 4
	}
	if s.field != "" {
		rank += 2
	}
	if s.Named {
		rank++
	}
	return rank
}

// Blame names the documents that rejected resources were made of, the likeliest cause first. A document that the client
// had accepted the effect of before is not named, if others are.
func (p proxy) Blame(state xds.State, typeURL string, names []string, reason string, since time.Time) []xds.Blamed {
	s, ok := state.(*snapshot.Snapshot)
	if !ok {
		return nil
	}
	suspects := p.suspects(s, typeURL, names, reason, since)
	// Of those that nothing speaks against but their type, the first few say as much as all.
	if len(suspects) > 0 && suspects[0].rank() > 0 {
		suspects = slices.DeleteFunc(suspects, func(s suspect) bool { return s.rank() == 0 })
	}
	var out []xds.Blamed
	for _, one := range suspects[:min(len(suspects), maxBlamed)] {
		out = append(out, one.blamed())
	}
	return out
}

// suspects are all documents that have a part in rejected resources, the likeliest cause first.
func (p proxy) suspects(s *snapshot.Snapshot, typeURL string, names []string, reason string, since time.Time) []suspect {
	var suspects []suspect
	for _, c := range translate.Causes(s, p.Proxy, typeURL, names) {
		one := suspect{Cause: c}
		if !since.IsZero() {
			one.changed, _ = p.journal.after(c.Key, since)
		}
		one.field, one.value = c.Mentioned(reason)
		suspects = append(suspects, one)
	}
	slices.SortStableFunc(suspects, func(a, b suspect) int {
		return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(len(b.value), len(a.value)), b.changed.Compare(a.changed))
	})
	return suspects
}

func (s suspect) blamed() xds.Blamed {
	b := xds.Blamed{Document: s.Key.String(), At: s.Origin.String(), Field: s.field}
	switch {
	case s.field != "":
		b.At = s.Place(s.field).String()
		b.Why = fmt.Sprintf("the reason quotes its %s", s.field)
	case s.Named:
		b.Why = "it is about this resource"
	default:
		b.Why = "it has a part in resources of this type"
	}
	if !s.changed.IsZero() {
		b.Why = "it changed since the last configuration that was accepted; " + b.Why
	}
	return b
}
