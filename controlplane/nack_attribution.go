package controlplane

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/translate"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// maxSuspects is the maximum number of documents that are reported for one NACK.
const maxSuspects = 5

// maxChangeLog limits the number of documents whose last change is recorded. If it is exceeded, only the newest change
// remains recorded.
const maxChangeLog = 20_000

// changeLog records when each document last changed, to find the most likely cause of a NACK.
type changeLog struct {
	mu      sync.Mutex
	changed map[config.Key]time.Time
}

func (j *changeLog) record(keys []config.Key, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.changed == nil {
		j.changed = map[config.Key]time.Time{}
	}
	for _, k := range keys {
		j.changed[k] = at
	}
	if len(j.changed) > maxChangeLog { // the names of workloads change often, so the log would grow without limit
		maps.DeleteFunc(j.changed, func(_ config.Key, changed time.Time) bool { return changed.Before(at) })
	}
}

// changedSince returns the time of the last change of the document key. It returns false if the document has not
// changed since start.
func (j *changeLog) changedSince(key config.Key, start time.Time) (time.Time, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.changed[key]
	return at, ok && !at.Before(start)
}

// causeCandidate is a document that may have caused a NACK.
type causeCandidate struct {
	translate.Cause
	changed      time.Time // zero if the document has not changed since the client's last ACK of the type
	field, value string    // the field of the document whose value the NACK's reason quotes, and that value
}

func (s causeCandidate) rank() int {
	rank := 0
	if !s.changed.IsZero() {
		rank += 8
	}
	if s.field != "" {
		rank += 4
	}
	if s.Kind == config.EnvoyFilter { // the control plane cannot check all values in an EnvoyFilter
		rank += 2
	}
	if s.Named {
		rank++
	}
	return rank
}

// attributeNACK returns at most maxSuspects documents from which the rejected resources called names were generated,
// the most likely cause first. It omits documents without evidence if there are candidates with evidence. lastACK is
// the time of the client's last ACK of the type.
func (p proxy) attributeNACK(state xds.State, typeURL string, names []string, reason string, lastACK time.Time) []xds.SuspectDocument {
	s, ok := state.(*snapshot.Snapshot)
	if !ok {
		return nil
	}
	quoted := reason
	// Remove the names of the resources from the reason, so that a document does not rank higher only because it
	// contains a part of such a name.
	for _, name := range names {
		quoted = strings.ReplaceAll(quoted, name, "")
	}
	var suspects []causeCandidate
	for _, c := range translate.Causes(s, p.Proxy, typeURL, names) {
		one := causeCandidate{Cause: c}
		if !lastACK.IsZero() {
			one.changed, _ = p.changes.changedSince(c.Key, lastACK)
		}
		one.field, one.value = c.FieldQuotedIn(quoted)
		suspects = append(suspects, one)
	}
	slices.SortStableFunc(suspects, func(a, b causeCandidate) int {
		return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(len(b.value), len(a.value)), b.changed.Compare(a.changed))
	})
	// Rank 0 means that only the resource type relates a candidate to the rejection. Report such candidates only if
	// there are no better ones.
	if len(suspects) > 0 && suspects[0].rank() > 0 {
		suspects = slices.DeleteFunc(suspects, func(s causeCandidate) bool { return s.rank() == 0 })
	}
	var out []xds.SuspectDocument
	for _, one := range suspects[:min(len(suspects), maxSuspects)] {
		out = append(out, one.suspectDocument())
	}
	return out
}

func (s causeCandidate) suspectDocument() xds.SuspectDocument {
	b := xds.SuspectDocument{Document: s.Key.String(), Position: s.Origin.String(), Field: s.field}
	switch {
	case s.field != "":
		b.Position = s.PositionOf(s.field).String()
		b.Evidence = fmt.Sprintf("Envoy's reason quotes the document's field %s", s.field)
	case s.Named:
		b.Evidence = "the document configures this resource"
	case s.Kind == config.EnvoyFilter:
		b.Evidence = "the document patches resources of this type, and only Envoy can check its values completely"
	default:
		b.Evidence = "the document contributes to resources of this type"
	}
	if !s.changed.IsZero() {
		b.Evidence = "the document changed since Envoy last accepted this type; " + b.Evidence
	}
	return b
}
