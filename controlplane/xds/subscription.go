package xds

import (
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"
)

const (
	// maxOutstanding limits the number of stored responses without an ACK or NACK.
	maxOutstanding = 512
	// maxOutstandingNames limits the number of removed names in the stored responses without an ACK or NACK. The last
	// response is stored even if it exceeds the limit, because a client can cause a response with any number of removed
	// names.
	maxOutstandingNames = 100_000
	// maxRetryParts is the maximum number of responses into which the resources of a rejected response are split for a
	// retry.
	maxRetryParts = 8
	// unknownVersion is stored as the version of a resource if the server does not know whether the client has the
	// resource, as after a NACK.
	unknownVersion = ""
)

// subscription is the state of one type for one client: the subscribed names and the resources that the client has.
type subscription struct {
	typeURL  string
	wildcard bool
	names    versionMap
	// requested is true after the client's first request for the type. A subscription can exist before that request:
	// the server may send assignments after their clusters.
	requested bool
	// namedOnce: a SotW client has listed names. From then on, an empty list selects no resources instead of all.
	namedOnce bool
	// known contains the client's resources with their versions: the version that the server sent last and that the
	// client did not reject, or the version that the client reports.
	known versionMap
	// refused contains the resources that the client rejected and has not accepted in any version since.
	refused map[string]refusal
	// removing contains scheduled removals. The server sends them after the additions of all types.
	removing map[string]struct{}
	// generateErr is the error of the last generation. Each push retries the generation.
	generateErr error

	pages            *pageCache
	lastFullResponse []*Resource     // only for types whose SotW responses must contain all resources
	outstanding      []*sentResponse // responses without an ACK or NACK, oldest first
	last             *sentResponse   // last and acked omit the resources to save memory
	acked            *sentResponse
	ackedAt          time.Time
	rejection        *Rejection // the last rejection
	rejectionBytes   int        // size in bytes of the names in rejection
	refusals         nackBackoff
	excessLogged     bool // the excess names were already logged
}

// sentResponse describes a response that the server sent.
type sentResponse struct {
	nonce, version string
	at             time.Time
	resources      []*Resource
	removed        []string
	removedBytes   int
}

// refusal describes a rejected version of a resource.
type refusal struct {
	version string
	// alone: the response contained no other resource, so this version is invalid. The server does not send it again.
	alone bool
	// suspect: the client's reason names the resource.
	suspect bool
	by      *Rejection
}

func newSubscription(typeURL string, pages *pageCache) *subscription {
	return &subscription{typeURL: typeURL, pages: pages, refused: map[string]refusal{}, removing: map[string]struct{}{}}
}

// difference contains the resources and removals that the server must send so that the client has exactly the resources
// that it should have.
type difference struct {
	send []*Resource
	// retries contains resources that the client rejected together, because one of them is invalid. The server sends
	// them in several parts, separate from new resources. The rejections of the parts then isolate the invalid
	// resource.
	retries [][]*Resource
	removed []string
}

// diff compares want, all resources that the client should have, with the client's resources. The result contains the
// resources whose names are in forced even if the client has them.
func (s *subscription) diff(want []*Resource, forced versionMap) difference {
	d, present := s.findMissing(want, forced)
	if present < s.known.len() {
		d.removed = s.findUnwanted(want)
	}
	return d
}

// diffOf is like diff, but compares only the resources called names. want contains those of them that exist.
func (s *subscription) diffOf(names []string, want []*Resource) difference {
	d, present := s.findMissing(want, versionMap{})
	known := 0
	if s.known.len() > 0 {
		for _, name := range names {
			if s.known.has(name) {
				known++
			}
		}
	}
	if known == present { // want contains all known names
		return d
	}
	wanted := make(map[string]struct{}, len(want))
	for _, r := range want {
		wanted[r.Name] = struct{}{}
	}
	for _, name := range names {
		if _, ok := wanted[name]; !ok && s.known.has(name) {
			d.removed = append(d.removed, name)
		}
	}
	return d
}

// selectSubscribed returns the elements of names to which the client subscribes, sorted and without duplicates.
func (s *subscription) selectSubscribed(names []string) []string {
	var out []string
	for _, name := range names {
		if s.wildcard || s.names.has(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// findMissing returns the resources in want that the server must send. present is the number of resources in want that
// the client has in any version. The caller must not modify d.send, which may share memory with want.
func (s *subscription) findMissing(want []*Resource, forced versionMap) (d difference, present int) {
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
		case refused.alone:
		case refused.suspect:
			suspects = append(suspects, r)
		default:
			again = append(again, r)
		}
	}
	d.retries = splitResources(again, maxRetryParts)
	d.retries = append(d.retries, splitResources(suspects, len(suspects))...)
	return d, present
}

// findUnwanted returns the names of the client's resources that are not in want, sorted.
func (s *subscription) findUnwanted(want []*Resource) []string {
	wanted := make(map[string]struct{}, len(want))
	for _, r := range want {
		wanted[r.Name] = struct{}{}
	}
	var unwanted []string
	for name := range s.known.all {
		if _, ok := wanted[name]; !ok {
			unwanted = append(unwanted, name)
		}
	}
	slices.Sort(unwanted)
	return unwanted
}

func splitResources(resources []*Resource, n int) [][]*Resource {
	if len(resources) == 0 {
		return nil
	}
	size := (len(resources) + n - 1) / n
	return slices.Collect(slices.Chunk(resources, size))
}

// record records the response r, which the server is about to send. If full is true, the client removes all resources
// that are not in r.
func (s *subscription) record(r *response, full bool) *sentResponse {
	b := &sentResponse{nonce: r.nonce, version: r.version, at: time.Now(), resources: r.resources, removed: r.removed}
	if full {
		b.removed = s.findUnwanted(r.resources)
		s.lastFullResponse = r.resources
	}
	s.known.addAll(s.pages, len(r.resources), versionsOf(r.resources))
	if !full && len(s.removing) > 0 {
		for _, res := range r.resources {
			delete(s.removing, res.Name)
		}
	}
	for _, name := range b.removed {
		s.removeResource(name)
	}
	s.known.compact(s.pages)
	b.removedBytes = sizeOf(b.removed)
	s.last = b.withoutResources()
	s.outstanding = append(s.outstanding, b)
	s.trimOutstanding()
	return b
}

// trimOutstanding drops the oldest stored responses that exceed maxOutstanding or maxOutstandingNames. A client that
// sends no ACKs would otherwise let them accumulate.
func (s *subscription) trimOutstanding() {
	names, last := 0, len(s.outstanding)-1
	for i, b := range slices.Backward(s.outstanding) {
		names += len(b.removed)
		if i < last && names > maxOutstandingNames || last-i == maxOutstanding {
			s.outstanding = slices.Delete(s.outstanding, 0, i+1)
			return
		}
	}
}

func (b *sentResponse) withoutResources() *sentResponse {
	return &sentResponse{nonce: b.nonce, version: b.version, at: b.at}
}

// removeResource records that the client no longer has the resource called name, or no longer subscribes to it.
func (s *subscription) removeResource(name string) {
	s.known.remove(name)
	delete(s.refused, name)
	delete(s.removing, name)
}

// takeOutstanding removes and returns the stored response with the nonce, or returns nil if there is none. It also
// drops older responses: clients send ACKs in order, so no ACK for them will arrive.
func (s *subscription) takeOutstanding(nonce string) *sentResponse {
	for i, b := range s.outstanding {
		if b.nonce == nonce {
			s.outstanding = slices.Delete(s.outstanding, 0, i+1)
			return b
		}
	}
	return nil
}

func (s *subscription) ack(b *sentResponse) {
	s.acked, s.ackedAt = b.withoutResources(), time.Now()
	if len(s.refused) > 0 {
		s.clearRefusals(b.resources)
	}
	for _, name := range b.removed {
		// The version is unknown because of an earlier NACK, and the server has not sent the resource since.
		if version, _ := s.known.get(name); version == unknownVersion {
			s.removeResource(name)
		}
	}
}

// clearRefusals removes the refusals of the resources that the client has accepted.
func (s *subscription) clearRefusals(accepted []*Resource) {
	for _, res := range accepted {
		r, ok := s.refused[res.Name]
		if !ok {
			continue
		}
		// A late ACK of an older version does not clear a newer refusal of the same name.
		if known, _ := s.known.get(res.Name); r.version == res.Version || known == res.Version {
			delete(s.refused, res.Name)
		}
	}
}

func (s *subscription) nack(b *sentResponse, reason string) *Rejection {
	rejection := &Rejection{At: time.Now(), Reason: truncateReason(reason), Nonce: b.nonce, Version: b.version}
	alone := len(b.resources) == 1
	for _, res := range b.resources {
		suspect := alone || mentionsName(reason, res.Name)
		if suspect {
			rejection.Resources = append(rejection.Resources, res.Name)
		}
		current, ok := s.known.get(res.Name)
		if !ok {
			continue // the resource was removed in the meantime
		}
		if current == res.Version {
			s.known.set(res.Name, unknownVersion)
		}
		s.refused[res.Name] = refusal{version: res.Version, alone: alone, suspect: suspect, by: rejection}
	}
	for _, name := range b.removed {
		if !s.known.has(name) {
			s.known.set(name, unknownVersion)
		}
	}
	rejection.named = len(rejection.Resources) > 0
	if !rejection.named {
		rejection.Resources = append(namesOf(b.resources), b.removed...)
	}
	slices.Sort(rejection.Resources)
	s.rejection, s.rejectionBytes = rejection, sizeOf(rejection.Resources)
	s.refusals.add(rejection.At)
	return rejection
}

// maxReason limits the length of the reason that is stored for a rejection. Envoy's reason names each rejected
// resource, and quotes errors of filters. Such an error may be as long as the filter's configuration.
const maxReason = 16 << 10

// truncateReason shortens a reason to maxReason bytes.
func truncateReason(reason string) string {
	if len(reason) <= maxReason {
		return reason
	}
	return strings.ToValidUTF8(reason[:maxReason], "") + fmt.Sprintf(" … and %d bytes more", len(reason)-maxReason)
}

// mentionsName reports whether reason contains name as a whole word.
func mentionsName(reason, name string) bool {
	for from := 0; name != "" && from < len(reason); {
		i := strings.Index(reason[from:], name)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(name)
		if (start == 0 || !isNameByte(reason[start-1])) && (end == len(reason) || !isNameByte(reason[end])) {
			return true
		}
		from = start + 1
	}
	return false
}

func isNameByte(b byte) bool {
	return b == '_' || b == '-' || b == '|' || b == '/' ||
		'0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}

// versionsOf returns an iterator over the names and versions of resources.
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
