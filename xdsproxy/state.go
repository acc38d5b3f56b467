package xdsproxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/mem"
)

// maxUnanswered bounds the responses that are remembered until Envoy has answered them. What is forgotten counts as never
// accepted, and a control plane that comes later sends it again.
const maxUnanswered = 128

// streamState is what one stream of Envoy has asked for and what it holds, whichever control plane serves it: all that is
// needed to go on with another. It is not safe for concurrent use.
type streamState struct {
	proto variant
	node  []byte // of Envoy's first request
	types map[string]*typeState
	order []string // in which Envoy asked first: what depends on something is asked for after it
	epoch int      // counts the streams upstream; 0 while there was none
	// listening says that Envoy has asked for listeners.
	listening bool
	// continued says that Envoy had configuration already when its stream began. Where all is to be kept, that asks for a
	// blank opening.
	continued, keeps bool
	// passed are responses that will not be answered any more, by the numbers under which they are being kept.
	passed []uint64
	// blank says that control planes are not to know which versions Envoy has, so that they send everything.
	blank bool
}

// typeState is the same for one type.
type typeState struct {
	url string
	// names are asked for; the value says whether there was something about it that Envoy has accepted.
	names map[string]bool
	// all says that Envoy asks for everything there is; silently, that it does so by naming nothing.
	all, silently bool
	// version is of the response that Envoy accepted last. In the delta protocol held has each resource's.
	version string
	held    map[string]string
	pending []unanswered // the oldest first
	// raw is Envoy's first request as it came, until something more is known than what it says.
	raw *frame
	// responded says that Envoy has accepted some response, and lacking counts the names that nobody has said anything about.
	responded bool
	lacking   int
}

// unanswered is a response that Envoy has and has not answered.
type unanswered struct {
	nonce string // as Envoy knows it
	// stage is the number under which it is being kept, or 0.
	stage uint64
	response
}

func newStreamState(v variant) *streamState {
	return &streamState{proto: v, types: make(map[string]*typeState)}
}

// verdict is what Envoy said to a response.
type verdict int

const (
	noVerdict verdict = iota
	accepted
	rejected
)

// heard is what came of a request.
type heard struct {
	request
	verdict verdict
	first   bool // of its type
	// about is the response that the verdict is about.
	about unanswered
	// changed says that Envoy asks for something else than before, and dropped are names that it does not ask for any more.
	changed bool
	dropped []string
}

// hear takes a request of Envoy into account. It gives what is to be sent upstream, of which the caller has a reference,
// or nil: an answer to somebody who is not there any more is nobody's business.
func (s *streamState) hear(f *frame, connected bool) (forward *frame, h heard, err error) {
	if h.request, err = peekRequest(s.proto, f.data); err != nil {
		return f.share(), h, err
	}
	if s.node == nil {
		s.node = h.node
	}
	if len(s.types) == 0 {
		s.continued = len(h.known) > 0 || h.version != ""
		s.blank = s.blank || s.keeps && s.continued
	}
	t, first := s.of(h.typeURL)
	if t == nil {
		return f.share(), h, nil
	}
	h.first = first
	s.listening = s.listening || h.typeURL == listenerType
	h.verdict, h.about = s.settle(t, h.request)
	h.changed, h.dropped = t.subscribe(s.proto, h.request, first)
	t.forgetRaw()
	if first && h.nonce == "" {
		t.raw = f.share()
	}
	if !connected {
		return nil, h, nil
	}
	return s.forward(f, t, h), h, nil
}

// forward is the request as the control plane in force is to get it.
func (s *streamState) forward(f *frame, t *typeState, h heard) *frame {
	epoch, nonce := splitNonce(h.nonce)
	switch {
	case h.first && s.blank:
		return s.ask(t, h.node)
	case nonce == h.nonce && (nonce == "" || s.epoch == 1):
		return f.share()
	case epoch == s.epoch:
		return f.with(requestNonce(s.proto), nonce)
	case !h.changed:
		return nil
	case s.proto == sotw:
		return s.ask(t, nil)
	}
	return change(h.request)
}

// of finds or opens the state of a type; nil when there are too many.
func (s *streamState) of(typeURL string) (t *typeState, first bool) {
	t = s.types[typeURL]
	if t != nil || len(s.types) >= maxTypes {
		return t, false
	}
	t = &typeState{url: typeURL, names: make(map[string]bool), held: make(map[string]string)}
	s.types[typeURL] = t
	s.order = append(s.order, typeURL)
	return t, true
}

// subscribe takes over what Envoy asks for, and tells whether that is something else than before.
func (t *typeState) subscribe(v variant, r request, first bool) (changed bool, dropped []string) {
	if v == sotw {
		if first {
			t.version = r.version
		}
		return t.replaceNames(r.names)
	}
	if first {
		for _, k := range r.known {
			t.held[k.name] = k.version
		}
	}
	if r.asksForAll() || (first && len(r.subscribe) == 0) {
		t.all, t.silently = true, !r.asksForAll()
	}
	for _, name := range r.subscribe {
		if _, had := t.names[name]; !had && name != wildcard {
			_, held := t.held[name]
			t.add(name, held)
		}
	}
	for _, name := range r.unsubscribe {
		t.unsubscribe(name)
	}
	return first || len(r.subscribe)+len(r.unsubscribe) > 0, r.unsubscribe
}

func (t *typeState) add(name string, answered bool) {
	t.names[name] = answered
	if !answered {
		t.lacking++
	}
}

func (t *typeState) remove(name string) {
	if answered, asked := t.names[name]; asked && !answered {
		t.lacking--
	}
	delete(t.names, name)
}

// told notes that Envoy has accepted something about a name.
func (t *typeState) told(name string) {
	if answered, asked := t.names[name]; asked && !answered {
		t.names[name] = true
		t.lacking--
	}
}

func (t *typeState) unsubscribe(name string) {
	if name == wildcard {
		t.all = false
		return
	}
	t.remove(name)
	if !t.all {
		delete(t.held, name)
	}
}

func (t *typeState) replaceNames(names []string) (changed bool, dropped []string) {
	next := make(map[string]struct{}, len(names))
	for _, name := range names {
		next[name] = struct{}{}
		if _, had := t.names[name]; !had {
			changed = true
			t.add(name, name == wildcard)
		}
	}
	for name := range t.names {
		if _, still := next[name]; !still {
			t.remove(name)
			dropped = append(dropped, name)
		}
	}
	return changed || len(dropped) > 0, dropped
}

// settle finds the response that a request answers.
func (s *streamState) settle(t *typeState, r request) (verdict, unanswered) {
	if r.nonce == "" {
		return noVerdict, unanswered{}
	}
	i := slices.IndexFunc(t.pending, func(p unanswered) bool { return p.nonce == r.nonce })
	if i < 0 {
		return noVerdict, unanswered{}
	}
	p := t.pending[i]
	from := i
	if s.proto == sotw { // whose newest answer is for all before it, too; but it does not say what became of them
		from = 0
		s.passOver(t.pending[:i])
	}
	t.pending = slices.Delete(t.pending, from, i+1)
	if r.rejected {
		t.reject(s.proto, p.response)
		return rejected, p
	}
	t.accept(s.proto, p.response)
	return accepted, p
}

func (s *streamState) passOver(responses []unanswered) {
	for _, p := range responses {
		if p.stage != 0 {
			s.passed = append(s.passed, p.stage)
		}
	}
}

// forgetStages has what is unanswered not be kept: its numbers are of what was written before.
func (s *streamState) forgetStages() {
	s.passed = nil
	for _, t := range s.types {
		for i := range t.pending {
			t.pending[i].stage = 0
		}
	}
}

func (t *typeState) accept(v variant, r response) {
	t.version, t.responded = r.version, true
	for _, one := range r.resources {
		t.told(one.name)
		if v == delta {
			t.held[one.name] = one.version
		}
	}
	for _, name := range r.removed {
		t.told(name)
		delete(t.held, name)
	}
}

// reject notes that Envoy may have any version of what was in a response: of clusters and listeners it takes the good ones
// of a response that has bad ones, too.
func (t *typeState) reject(v variant, r response) {
	if v == sotw {
		return
	}
	for _, one := range r.resources {
		t.held[one.name] = ""
	}
}

// sent takes a response into account that is about to go to Envoy, and gives the nonce that Envoy is to get.
func (s *streamState) sent(r response, epoch int, stage uint64) (nonce string) {
	nonce = joinNonce(epoch, r.nonce)
	t := s.types[r.typeURL]
	if t == nil {
		return nonce
	}
	t.forgetRaw()
	if len(t.pending) >= maxUnanswered {
		s.passOver(t.pending[:1])
		t.pending = slices.Delete(t.pending, 0, 1)
	}
	t.pending = append(t.pending, unanswered{nonce: nonce, stage: stage, response: r})
	return nonce
}

// isWhole says whether Envoy has everything that it has asked for, as far as there is something.
func (s *streamState) isWhole() bool {
	for _, t := range s.types {
		if !t.responded || t.lacking > 0 || len(t.pending) > 0 {
			return false
		}
	}
	return s.listening
}

// hasListeners says whether Envoy has accepted listeners, which it asks for last.
func (s *streamState) hasListeners() bool {
	t := s.types[listenerType]
	return t != nil && t.responded
}

// awaitsAnswer says whether Envoy has asked for something about which nothing has come.
func (s *streamState) awaitsAnswer() bool {
	for _, t := range s.types {
		if len(t.pending) == 0 && (!t.responded || t.lacking > 0) {
			return true
		}
	}
	return false
}

// forgetAnswers has every type wait for an answer again.
func (s *streamState) forgetAnswers() {
	for _, t := range s.types {
		t.responded = false
	}
}

// opening is what a new stream upstream begins with: all that Envoy has asked for, and what it holds of it. The caller has
// a reference to each.
func (s *streamState) opening() []*frame {
	var frames []*frame
	for i, typeURL := range s.order {
		t := s.types[typeURL]
		if t.raw != nil && !s.blank {
			frames = append(frames, t.raw.share())
			continue
		}
		var node []byte
		if i == 0 {
			node = s.node
		}
		frames = append(frames, s.ask(t, node))
	}
	return frames
}

// release frees what is held.
func (s *streamState) release() {
	for _, t := range s.types {
		t.forgetRaw()
	}
}

func (t *typeState) forgetRaw() {
	if t.raw != nil {
		t.raw.free()
		t.raw = nil
	}
}

// nonceMark begins the nonces that the relay made: different control planes may well use the same ones.
const nonceMark = "pilotfish/"

// joinNonce is how Envoy gets to know a nonce of a stream upstream. Those of the first one stay as they are; epoch 0 is the
// relay itself.
func joinNonce(epoch int, nonce string) string {
	if epoch == 1 && !strings.HasPrefix(nonce, nonceMark) {
		return nonce
	}
	return fmt.Sprintf("%s%d/%s", nonceMark, epoch, nonce)
}

func splitNonce(joined string) (epoch int, nonce string) {
	rest, marked := strings.CutPrefix(joined, nonceMark)
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

// share is another reference to the frame.
func (f *frame) share() *frame {
	f.data.Ref()
	return &frame{data: f.data}
}

// with is the frame with a text set, which goes over the one that is in it: of a field that is there twice, protobuf takes
// the last.
func (f *frame) with(field int, text string) *frame {
	shared := f.share()
	data := make(mem.BufferSlice, 0, len(shared.data)+1)
	data = append(data, shared.data...)
	return &frame{data: append(data, mem.SliceBuffer(appendText(nil, field, text)))}
}
