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

// maxChangeLog limits the number of documents whose last change is recorded. Beyond this number, the log is cleared
// before the newest change is recorded.
const maxChangeLog = 20_000

// changeLog records when documents last changed. It is used to find the most likely cause of a NACK.
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
	if len(j.changed) > maxChangeLog { // names of workloads change often, and the log would grow without limit
		maps.DeleteFunc(j.changed, func(_ config.Key, changed time.Time) bool { return changed.Before(at) })
	}
}

// changedSince returns the time of a document's last change. ok is false if the document did not change after since.
func (j *changeLog) changedSince(key config.Key, since time.Time) (time.Time, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, ok := j.changed[key]
	return at, ok && !at.Before(since)
}

// causeCandidate is a document that may have caused a rejection.
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
	if s.Kind == config.EnvoyFilter { // only EnvoyFilters contain settings that the control plane cannot check
		rank += 2
	}
	if s.Named {
		rank++
	}
	return rank
}

// attributeNACK returns the documents from which the rejected resources were generated, the most likely cause first. If
// there are more likely candidates, it omits documents that the client accepted before.
func (p proxy) attributeNACK(state xds.State, typeURL string, names []string, reason string, since time.Time) []xds.SuspectDocument {
	s, ok := state.(*snapshot.Snapshot)
	if !ok {
		return nil
	}
	quoted := reason
	// Remove the resource's name, so that a document does not rank higher only because it contains a part of that name.
	for _, name := range names {
		quoted = strings.ReplaceAll(quoted, name, "")
	}
	var suspects []causeCandidate
	for _, c := range translate.Causes(s, p.Proxy, typeURL, names) {
		one := causeCandidate{Cause: c}
		if !since.IsZero() {
			one.changed, _ = p.changes.changedSince(c.Key, since)
		}
		one.field, one.value = c.FieldQuotedIn(quoted)
		suspects = append(suspects, one)
	}
	slices.SortStableFunc(suspects, func(a, b causeCandidate) int {
		return cmp.Or(cmp.Compare(b.rank(), a.rank()), cmp.Compare(len(b.value), len(a.value)), b.changed.Compare(a.changed))
	})
	// If the resource type is all that relates the candidates to the rejection, the first few of them are sufficient.
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
