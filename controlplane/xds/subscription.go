package xds

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

const (
	// maxOutstanding bounds the responses that are remembered until the client answers them.
	maxOutstanding = 512
	// maxOutstandingNames bounds the names of what these remove, but for the last one's: a client can ask for any.
	maxOutstandingNames = 100_000
	// maxParts is how many responses a refused response's resources are spread over when they are sent again.
	maxParts = 8
	// unsure is the version of what the client may or may not have: after a NACK only the client knows.
	unsure = ""
)

// subscription is what one client wants of one type, and what it has of it.
type subscription struct {
	typeURL  string
	wildcard bool
	names    ledger
	// asked says that the client's own request was seen; an assignment may be sent behind its cluster before that.
	asked bool
	// named says that a state-of-the-world client named resources once: an empty list is then none, and not all.
	named bool
	// known is what the client has, by name: the version that was sent and not refused, or that the client came with.
	known ledger
	// refused is what a client refused and does not have in a version that it accepted since.
	refused map[string]refusal
	// removing is what has to be removed once all additions of all types are sent.
	removing map[string]struct{}
	// failed is the last error in generating the resources; it is tried again at each push.
	failed error

	pages       *pages
	full        []*Resource // the last state-of-the-world response, of a type whose responses are complete
	outstanding []*sent     // responses without an answer, oldest first
	last        *sent       // without its resources, as is acked: they are not kept for being told of
	acked       *sent
	ackedAt     time.Time
	rejection   *Rejection // the last one
	refusals    refusals
	excessTold  bool // it was told of names that are not subscribed to
}

// sent is a response that was sent.
type sent struct {
	nonce, version string
	at             time.Time
	resources      []*Resource
	removed        []string
}

// refusal is the refused version of a resource.
type refusal struct {
	version string
	// condemned: it was refused in a response of its own, so there is no point in sending that version again.
	condemned bool
	// suspect: the client's reason names it.
	suspect bool
	by      *Rejection
}

func newSubscription(typeURL string, pages *pages) *subscription {
	return &subscription{typeURL: typeURL, pages: pages, refused: map[string]refusal{}, removing: map[string]struct{}{}}
}

// difference is what has to be sent for a client to have what it should.
type difference struct {
	send []*Resource
	// again are resources that were refused together with others: one of those may have been the bad one. They go in
	// parts, and not together with anything new, so that the bad one is found and holds up nothing else.
	again   [][]*Resource
	removed []string
}

// diff compares all that the client should have with what it has. Forced names are sent although the client has them.
func (s *subscription) diff(want []*Resource, forced ledger) difference {
	d, present := s.lacking(want, forced)
	if present < s.known.len() {
		d.removed = s.absent(want)
	}
	return d
}

// diffOf compares some names only: want is what there is of them.
func (s *subscription) diffOf(names []string, want []*Resource) difference {
	d, present := s.lacking(want, ledger{})
	known := 0
	if s.known.len() > 0 {
		for _, name := range names {
			if s.known.has(name) {
				known++
			}
		}
	}
	if known == present { // and all of them are among what there is
		return d
	}
	there := make(map[string]struct{}, len(want))
	for _, r := range want {
		there[r.Name] = struct{}{}
	}
	for _, name := range names {
		if _, ok := there[name]; !ok && s.known.has(name) {
			d.removed = append(d.removed, name)
		}
	}
	return d
}

// wanted gives those of the names that the client subscribes to, each once, sorted.
func (s *subscription) wanted(names []string) []string {
	var out []string
	for _, name := range names {
		if s.wildcard || s.names.has(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// lacking gives what of want has to be sent, and how many of it the client has in some version. Nobody may change what is
// to be sent: it may be all of want.
func (s *subscription) lacking(want []*Resource, forced ledger) (d difference, present int) {
	if s.known.len() == 0 && len(s.refused) == 0 {
		d.send = slices.Clip(want)
		return d, 0
	}
	var again, suspects []*Resource
	for _, r := range want {
		version, known := s.known.get(r.Name)
		if known {
			present++
		}
		force := forced.has(r.Name)
		refused, wasRefused := s.refused[r.Name]
		wasRefused = wasRefused && refused.version == r.Version
		switch {
		case known && version == r.Version && !force:
		case !wasRefused || force:
			d.send = append(d.send, r)
		case refused.condemned:
		case refused.suspect:
			suspects = append(suspects, r)
		default:
			again = append(again, r)
		}
	}
	d.again = parts(again, maxParts)
	d.again = append(d.again, parts(suspects, len(suspects))...)
	return d, present
}

// absent gives what the client has and should not, sorted.
func (s *subscription) absent(want []*Resource) []string {
	wanted := make(map[string]struct{}, len(want))
	for _, r := range want {
		wanted[r.Name] = struct{}{}
	}
	var gone []string
	for name := range s.known.all {
		if _, ok := wanted[name]; !ok {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	return gone
}

func parts(resources []*Resource, n int) [][]*Resource {
	if len(resources) == 0 {
		return nil
	}
	size := (len(resources) + n - 1) / n
	return slices.Collect(slices.Chunk(resources, size))
}

// record books a response that is about to be sent; full says that the client drops what is not in it.
func (s *subscription) record(r *response, full bool) *sent {
	b := &sent{nonce: r.nonce, version: r.version, at: time.Now(), resources: r.resources, removed: r.removed}
	if full {
		b.removed = s.absent(r.resources)
		s.full = r.resources
	}
	s.known.adopt(s.pages, len(r.resources), versionsOf(r.resources))
	if !full && len(s.removing) > 0 {
		for _, res := range r.resources {
			delete(s.removing, res.Name)
		}
	}
	for _, name := range b.removed {
		s.forget(name)
	}
	s.known.settle(s.pages)
	s.last = b.told()
	s.outstanding = append(s.outstanding, b)
	s.forgetUnanswered()
	return b
}

// forgetUnanswered lets go of the oldest responses, where the client answers none.
func (s *subscription) forgetUnanswered() {
	names, last := 0, len(s.outstanding)-1
	for i, b := range slices.Backward(s.outstanding) {
		names += len(b.removed)
		if i < last && names > maxOutstandingNames || last-i == maxOutstanding {
			s.outstanding = slices.Delete(s.outstanding, 0, i+1)
			return
		}
	}
}

func (b *sent) told() *sent { return &sent{nonce: b.nonce, version: b.version, at: b.at} }

// forget strikes out a resource that the client no longer has or wants.
func (s *subscription) forget(name string) {
	s.known.remove(name)
	delete(s.refused, name)
	delete(s.removing, name)
}

// settle takes the response with the nonce out of the outstanding ones, or gives nil. Clients answer in order, so what
// was sent before it will not be answered any more: the client dropped it.
func (s *subscription) settle(nonce string) *sent {
	for i, b := range s.outstanding {
		if b.nonce == nonce {
			s.outstanding = slices.Delete(s.outstanding, 0, i+1)
			return b
		}
	}
	return nil
}

func (s *subscription) ack(b *sent) {
	s.acked, s.ackedAt = b.told(), time.Now()
	if len(s.refused) > 0 {
		s.pardon(b.resources)
	}
	for _, name := range b.removed {
		if version, _ := s.known.get(name); version == unsure { // an earlier answer had cast doubt on it, and nothing was sent since
			s.forget(name)
		}
	}
}

// pardon lifts the refusals of what was accepted.
func (s *subscription) pardon(accepted []*Resource) {
	for _, res := range accepted {
		r, ok := s.refused[res.Name]
		if !ok {
			continue
		}
		// A newer refusal of the same name is not lifted by the late acknowledgement of an older version.
		if known, _ := s.known.get(res.Name); r.version == res.Version || known == res.Version {
			delete(s.refused, res.Name)
		}
	}
}

func (s *subscription) nack(b *sent, reason string) *Rejection {
	rejection := &Rejection{At: time.Now(), Reason: bounded(reason), Nonce: b.nonce, Version: b.version}
	alone := len(b.resources) == 1
	for _, res := range b.resources {
		suspect := alone || mentions(reason, res.Name)
		if suspect {
			rejection.Resources = append(rejection.Resources, res.Name)
		}
		current, ok := s.known.get(res.Name)
		if !ok {
			continue // it was taken back in the meantime
		}
		if current == res.Version {
			s.known.set(res.Name, unsure)
		}
		s.refused[res.Name] = refusal{version: res.Version, condemned: alone, suspect: suspect, by: rejection}
	}
	for _, name := range b.removed {
		if !s.known.has(name) {
			s.known.set(name, unsure)
		}
	}
	rejection.named = len(rejection.Resources) > 0
	if !rejection.named {
		rejection.Resources = append(namesOf(b.resources), b.removed...)
	}
	slices.Sort(rejection.Resources)
	s.rejection = rejection
	s.refusals.add(rejection.At)
	return rejection
}

// maxReason bounds what is kept of a reason. One of Envoy's names each resource of a response that it refuses, and has what a
// filter says of its configuration, which may be as long as that.
const maxReason = 16 << 10

// bounded is a reason that can be kept, and shown, for as long as it holds.
func bounded(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxReason], "") + fmt.Sprintf(" … and %d bytes more", len(reason)-maxReason)
}

// mentions says whether a reason names the resource, as a word of its own.
func mentions(reason, name string) bool {
	for from := 0; name != "" && from < len(reason); {
		i := strings.Index(reason[from:], name)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(name)
		if (start == 0 || !partOfName(reason[start-1])) && (end == len(reason) || !partOfName(reason[end])) {
			return true
		}
		from = start + 1
	}
	return false
}

func partOfName(b byte) bool {
	return b == '_' || b == '-' || b == '|' || b == '/' ||
		'0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// versionsOf are the names and versions of resources.
func versionsOf(resources []*Resource) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, r := range resources {
			if !yield(r.Name, r.Version) {
				return
			}
		}
	}
}

func namesOf(resources []*Resource) []string {
	names := make([]string, len(resources))
	for i, r := range resources {
		names[i] = r.Name
	}
	return names
}

func mapKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
