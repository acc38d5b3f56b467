package xdsproxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/mem"
)

// maxPendingResponses limits the recorded responses without an answer. Dropped ones count as not accepted, and the next
// control plane sends them again.
const maxPendingResponses = 128

// streamState is the state of a stream of Envoy: its subscriptions and the versions that it has. It does not depend on
// the control plane, and is sufficient to continue with another one. It is not safe for concurrent use.
type streamState struct {
	proto     variant
	node      []byte // from Envoy's first request
	types     map[string]*typeState
	typeOrder []string // order of Envoy's first requests: dependent types follow those that they depend on
	epoch     int      // number of the upstream stream; 0 before the first
	// listenersRequested: Envoy has requested listeners.
	listenersRequested bool
	// hadConfig: Envoy already had configuration when its stream started. storesConfig: accepted resources are stored.
	// If both are set, the initial requests contain no versions, so that all resources are sent and stored.
	hadConfig, storesConfig bool
	// superseded are the stages of recorded responses that Envoy will not answer.
	superseded []uint64
	// hideVersions omits Envoy's versions from initial requests, so that control planes send all resources.
	hideVersions bool
}

// typeState is the state of one type on a stream.
type typeState struct {
	url string
	// names are the requested names. The value reports whether Envoy has accepted the resource or its removal.
	names map[string]bool
	// all: Envoy requests all resources. isImplicit: it does so by an empty subscription.
	all, isImplicit bool
	// version is that of the last accepted response. heldVersions are the versions of Envoy's resources in delta.
	version      string
	heldVersions map[string]string
	pending      []pendingResponse // oldest first
	// raw is Envoy's first request. It is dropped when the state contains more than the request.
	raw *frame
	// responded: Envoy has accepted a response. unansweredNames is the number of names without an accepted resource or
	// removal.
	responded       bool
	unansweredNames int
}

// pendingResponse is a response that Envoy has not answered.
type pendingResponse struct {
	nonce string // as sent to Envoy
	// stage is the number under which it is recorded, or 0.
	stage uint64
	response
}

func newStreamState(v variant) *streamState {
	return &streamState{proto: v, types: make(map[string]*typeState)}
}

// answerKind is Envoy's answer to a response.
type answerKind int

const (
	noAnswer answerKind = iota
	ack
	nack
)

// requestInfo is a parsed request and its effects.
type requestInfo struct {
	request
	answer answerKind
	first  bool // first request of its type
	// answered is the response that the request answers.
	answered pendingResponse
	// changed: the subscription changed. dropped are names that Envoy no longer requests.
	changed bool
	dropped []string
}

// processRequest records a request of Envoy. It returns the frame to send upstream, which the caller owns. The frame is
// nil if there is nothing to send, for example for an answer to an earlier control plane.
func (s *streamState) processRequest(f *frame, connected bool) (forward *frame, h requestInfo, err error) {
	if h.request, err = peekRequest(s.proto, f.data); err != nil {
		return f.share(), h, err
	}
	if s.node == nil {
		s.node = h.node
	}
	if len(s.types) == 0 {
		s.hadConfig = len(h.known) > 0 || h.version != ""
		s.hideVersions = s.hideVersions || s.storesConfig && s.hadConfig
	}
	t, first := s.ensureType(h.typeURL)
	if t == nil {
		return f.share(), h, nil
	}
	h.first = first
	s.listenersRequested = s.listenersRequested || h.typeURL == listenerType
	h.answer, h.answered = s.resolvePending(t, h.request)
	h.changed, h.dropped = t.subscribe(s.proto, h.request, first)
	t.releaseRaw()
	if first && h.nonce == "" {
		t.raw = f.share()
	}
	if !connected {
		return nil, h, nil
	}
	return s.adaptRequest(f, t, h), h, nil
}

// adaptRequest returns the request for the current control plane, with its nonce, or nil.
func (s *streamState) adaptRequest(f *frame, t *typeState, h requestInfo) *frame {
	epoch, nonce := splitNonce(h.nonce)
	switch {
	case h.first && s.hideVersions:
		return s.initialRequest(t, h.node)
	case nonce == h.nonce && (nonce == "" || s.epoch == 1):
		return f.share()
	case epoch == s.epoch:
		return f.withField(requestNonce(s.proto), nonce)
	case !h.changed:
		return nil
	case s.proto == sotw:
		return s.initialRequest(t, nil)
	}
	return subscriptionRequest(h.request)
}

// ensureType returns the state of a type and creates it if necessary. It returns nil if there are too many types.
func (s *streamState) ensureType(typeURL string) (t *typeState, first bool) {
	t = s.types[typeURL]
	if t != nil || len(s.types) >= maxTypes {
		return t, false
	}
	t = &typeState{url: typeURL, names: make(map[string]bool), heldVersions: make(map[string]string)}
	s.types[typeURL] = t
	s.typeOrder = append(s.typeOrder, typeURL)
	return t, true
}

// subscribe applies the subscription of a request, and returns whether it changed and the dropped names.
func (t *typeState) subscribe(v variant, r request, first bool) (changed bool, dropped []string) {
	if v == sotw {
		if first {
			t.version = r.version
		}
		return t.replaceNames(r.names)
	}
	if first {
		for _, k := range r.known {
			t.heldVersions[k.name] = k.version
		}
	}
	if r.hasWildcard() || (first && len(r.subscribe) == 0) {
		t.all, t.isImplicit = true, !r.hasWildcard()
	}
	for _, name := range r.subscribe {
		if _, had := t.names[name]; !had && name != wildcard {
			_, held := t.heldVersions[name]
			t.addName(name, held)
		}
	}
	for _, name := range r.unsubscribe {
		t.unsubscribe(name)
	}
	return first || len(r.subscribe)+len(r.unsubscribe) > 0, r.unsubscribe
}

func (t *typeState) addName(name string, answered bool) {
	t.names[name] = answered
	if !answered {
		t.unansweredNames++
	}
}

func (t *typeState) removeName(name string) {
	if answered, ok := t.names[name]; ok && !answered {
		t.unansweredNames--
	}
	delete(t.names, name)
}

// markAnswered records that Envoy has accepted the resource with the name or its removal.
func (t *typeState) markAnswered(name string) {
	if answered, ok := t.names[name]; ok && !answered {
		t.names[name] = true
		t.unansweredNames--
	}
}

func (t *typeState) unsubscribe(name string) {
	if name == wildcard {
		t.all = false
		return
	}
	t.removeName(name)
	if !t.all {
		delete(t.heldVersions, name)
	}
}

func (t *typeState) replaceNames(names []string) (changed bool, dropped []string) {
	next := make(map[string]struct{}, len(names))
	for _, name := range names {
		next[name] = struct{}{}
		if _, had := t.names[name]; !had {
			changed = true
			t.addName(name, name == wildcard)
		}
	}
	for name := range t.names {
		if _, still := next[name]; !still {
			t.removeName(name)
			dropped = append(dropped, name)
		}
	}
	return changed || len(dropped) > 0, dropped
}

// resolvePending removes the response that a request answers, and returns it with the kind of the answer.
func (s *streamState) resolvePending(t *typeState, r request) (answerKind, pendingResponse) {
	if r.nonce == "" {
		return noAnswer, pendingResponse{}
	}
	i := slices.IndexFunc(t.pending, func(p pendingResponse) bool { return p.nonce == r.nonce })
	if i < 0 {
		return noAnswer, pendingResponse{}
	}
	p := t.pending[i]
	from := i
	if s.proto == sotw { // in SotW the answer also covers earlier responses, but not whether Envoy accepted them
		from = 0
		s.supersede(t.pending[:i])
	}
	t.pending = slices.Delete(t.pending, from, i+1)
	if r.rejected {
		t.reject(s.proto, p.response)
		return nack, p
	}
	t.accept(s.proto, p.response)
	return ack, p
}

func (s *streamState) supersede(responses []pendingResponse) {
	for _, p := range responses {
		if p.stage != 0 {
			s.superseded = append(s.superseded, p.stage)
		}
	}
}

// clearStages removes the stages of pending responses, because recording starts again with new stage numbers.
func (s *streamState) clearStages() {
	s.superseded = nil
	for _, t := range s.types {
		for i := range t.pending {
			t.pending[i].stage = 0
		}
	}
}

func (t *typeState) accept(v variant, r response) {
	t.version, t.responded = r.version, true
	for _, one := range r.resources {
		t.markAnswered(one.name)
		if v == delta {
			t.heldVersions[one.name] = one.version
		}
	}
	for _, name := range r.removed {
		t.markAnswered(name)
		delete(t.heldVersions, name)
	}
}

// reject marks the versions of the response's resources as unknown: Envoy accepts valid clusters and listeners of a
// response that it rejects.
func (t *typeState) reject(v variant, r response) {
	if v == sotw {
		return
	}
	for _, one := range r.resources {
		t.heldVersions[one.name] = ""
	}
}

// addPending records a response that is about to be sent to Envoy, and returns its nonce for Envoy.
func (s *streamState) addPending(r response, epoch int, stage uint64) (nonce string) {
	nonce = joinNonce(epoch, r.nonce)
	t := s.types[r.typeURL]
	if t == nil {
		return nonce
	}
	t.releaseRaw()
	if len(t.pending) >= maxPendingResponses {
		s.supersede(t.pending[:1])
		t.pending = slices.Delete(t.pending, 0, 1)
	}
	t.pending = append(t.pending, pendingResponse{nonce: nonce, stage: stage, response: r})
	return nonce
}

// isComplete reports whether Envoy has requested listeners, and has an answer to all its requests.
func (s *streamState) isComplete() bool {
	for _, t := range s.types {
		if !t.responded || t.unansweredNames > 0 || len(t.pending) > 0 {
			return false
		}
	}
	return s.listenersRequested
}

// hasListeners reports whether Envoy has accepted listeners, which it requests last.
func (s *streamState) hasListeners() bool {
	t := s.types[listenerType]
	return t != nil && t.responded
}

// isAwaitingResponse reports whether a request of Envoy has no response yet.
func (s *streamState) isAwaitingResponse() bool {
	for _, t := range s.types {
		if len(t.pending) == 0 && (!t.responded || t.unansweredNames > 0) {
			return true
		}
	}
	return false
}

// resetResponded makes all types wait for a response again.
func (s *streamState) resetResponded() {
	for _, t := range s.types {
		t.responded = false
	}
}

// initialRequests returns the first requests of a new upstream stream: Envoy's subscriptions and versions. The caller
// owns the frames.
func (s *streamState) initialRequests() []*frame {
	var frames []*frame
	for i, typeURL := range s.typeOrder {
		t := s.types[typeURL]
		if t.raw != nil && !s.hideVersions {
			frames = append(frames, t.raw.share())
			continue
		}
		var node []byte
		if i == 0 {
			node = s.node
		}
		frames = append(frames, s.initialRequest(t, node))
	}
	return frames
}

// release frees the recorded requests.
func (s *streamState) release() {
	for _, t := range s.types {
		t.releaseRaw()
	}
}

func (t *typeState) releaseRaw() {
	if t.raw != nil {
		t.raw.free()
		t.raw = nil
	}
}

// noncePrefix starts the nonces that the relay assigns, because different control planes may use the same nonces.
const noncePrefix = "pilotfish/"

// joinNonce returns the nonce that is sent to Envoy. Nonces of the first upstream stream are unchanged. Epoch 0 is the
// relay itself.
func joinNonce(epoch int, nonce string) string {
	if epoch == 1 && !strings.HasPrefix(nonce, noncePrefix) {
		return nonce
	}
	return fmt.Sprintf("%s%d/%s", noncePrefix, epoch, nonce)
}

func splitNonce(joined string) (epoch int, nonce string) {
	rest, marked := strings.CutPrefix(joined, noncePrefix)
	if !marked {
		return 1, joined
	}
	number, nonce, _ := strings.Cut(rest, "/")
	epoch, err := strconv.Atoi(number)
	if err != nil {
		return 1, joined
	}
	return epoch, nonce
}

// share returns another reference to the frame.
func (f *frame) share() *frame {
	f.data.Ref()
	return &frame{data: f.data}
}

// withField returns the frame with a text field set. The field is appended: the last occurrence of a field counts in
// protobuf.
func (f *frame) withField(field int, text string) *frame {
	shared := f.share()
	data := make(mem.BufferSlice, 0, len(shared.data)+1)
	data = append(data, shared.data...)
	return &frame{data: append(data, mem.SliceBuffer(appendText(nil, field, text)))}
}
