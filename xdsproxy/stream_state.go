package xdsproxy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// maxPendingResponses limits the recorded responses per type to which Envoy has not replied. At the limit, the relay
// drops the oldest response and treats it as not accepted. The next control plane then sends its resources again.
const maxPendingResponses = 128

// streamState is the state of one stream of Envoy: the subscriptions, and the versions of the resources that Envoy has.
// It does not depend on a control plane, so the relay can continue the stream with another one. It is not safe for
// concurrent use.
type streamState struct {
	proto wire.Variant
	node  []byte // from Envoy's first request
	types map[string]*typeState
	// Type URLs in the order of Envoy's first requests, which is consistent with the dependencies between types.
	typeOrder []string
	epoch     int // number of the current upstream stream; 0 before the first
	// listenersRequested: Envoy has requested listeners.
	listenersRequested bool
	// hadConfig: Envoy already had configuration when its stream started. storesConfig: accepted resources are stored.
	// If both are set, the initial requests contain no versions, so that all resources are sent and stored.
	hadConfig, storesConfig bool
	// superseded lists pending responses to which Envoy will not reply. pendingBytes is the total size of the messages
	// of pending responses.
	superseded   []pendingResponse
	pendingBytes int
	// hideVersions omits Envoy's versions from initial requests, so that control planes send all resources.
	hideVersions bool
}

// typeState is the state of one resource type on a stream.
type typeState struct {
	url string
	// names contains the requested names. A value is true ("resolved") if Envoy has accepted the resource or its
	// removal.
	names map[string]bool
	// all: Envoy requests all resources. isImplicit: it does so by a request without names instead of "*".
	all, isImplicit bool
	// version is the version of the last accepted response. heldVersions contains the versions of the resources that
	// Envoy has, by name. It is used only in delta.
	version      string
	heldVersions map[string]string
	pending      []pendingResponse // oldest first
	// raw is Envoy's first request. It is nil as soon as another request or a response has changed the state.
	raw *wire.Message
	// responded: Envoy has accepted a response. unresolvedNames is the number of names that are not resolved.
	responded       bool
	unresolvedNames int
}

// pendingResponse is a response to which Envoy has not replied.
type pendingResponse struct {
	nonce string // the nonce that was sent to Envoy
	// message is the response, which is stored if Envoy accepts it; nil if it must not be stored.
	message *wire.Message
	wire.Response
}

func newStreamState(v wire.Variant) *streamState {
	return &streamState{proto: v, types: make(map[string]*typeState)}
}

// replyKind is the kind of Envoy's reply to a response.
type replyKind int

const (
	noReply replyKind = iota
	ack
	nack
)

// requestInfo is a parsed request and its effects.
type requestInfo struct {
	wire.Request
	reply replyKind
	first bool // first request of its type
	// repliedTo is the response that the request ACKs or NACKs.
	repliedTo pendingResponse
	// changed: the request changes the subscription. dropped lists the names that Envoy no longer requests.
	changed bool
	dropped []string
}

// processRequest records a request of Envoy. It returns the message to send upstream, which the caller owns. The
// message is nil if there is nothing to send, for example if Envoy ACKs a response of an earlier control plane.
func (s *streamState) processRequest(f *wire.Message, connected bool) (forward *wire.Message, h requestInfo, err error) {
	if h.Request, err = wire.ParseRequest(s.proto, f.Data); err != nil {
		return f.Share(), h, err
	}
	if s.node == nil {
		s.node = h.Node
	}
	if len(s.types) == 0 {
		s.hadConfig = len(h.Known) > 0 || h.Version != ""
		s.hideVersions = s.hideVersions || s.storesConfig && s.hadConfig
	}
	t, first := s.ensureType(h.TypeURL)
	if t == nil {
		return f.Share(), h, nil
	}
	h.first = first
	s.listenersRequested = s.listenersRequested || h.TypeURL == listenerType
	h.reply, h.repliedTo = s.resolvePending(t, h.Request)
	h.changed, h.dropped = t.subscribe(s.proto, h.Request, first)
	t.releaseRaw()
	if first && h.Nonce == "" {
		t.raw = f.Share()
	}
	if !connected {
		return nil, h, nil
	}
	return s.adaptRequest(f, t, h), h, nil
}

// adaptRequest returns the message to send upstream for the request f, with the nonce of the current control plane. If
// f replies to a response of an earlier control plane, the message contains only the subscription. adaptRequest returns
// nil if such a request does not change the subscription.
func (s *streamState) adaptRequest(f *wire.Message, t *typeState, h requestInfo) *wire.Message {
	epoch, nonce := splitNonce(h.Nonce)
	switch {
	case h.first && s.hideVersions:
		return s.initialRequest(t, h.Node)
	case nonce == h.Nonce && (nonce == "" || s.epoch == 1):
		return f.Share()
	case epoch == s.epoch:
		return f.WithField(wire.NonceField(s.proto), nonce)
	case !h.changed:
		return nil
	case s.proto == wire.SotW:
		return s.initialRequest(t, nil)
	}
	return subscriptionRequest(h.Request)
}

// ensureType returns the state of a type. If necessary, it creates the state, and first is true. It returns nil if
// there are already maxTypes types.
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

// subscribe applies the subscription in a request. It returns whether the subscription changed, and the names that
// Envoy no longer requests.
func (t *typeState) subscribe(v wire.Variant, r wire.Request, first bool) (changed bool, dropped []string) {
	if v == wire.SotW {
		if first {
			t.version = r.Version
		}
		return t.replaceNames(r.Names)
	}
	if first {
		for _, k := range r.Known {
			t.heldVersions[k.Name] = k.Version
		}
	}
	if r.HasWildcard() || (first && len(r.Subscribe) == 0) {
		t.all, t.isImplicit = true, !r.HasWildcard()
	}
	for _, name := range r.Subscribe {
		if _, had := t.names[name]; !had && name != wire.Wildcard {
			_, held := t.heldVersions[name]
			t.addName(name, held)
		}
	}
	for _, name := range r.Unsubscribe {
		t.unsubscribe(name)
	}
	return first || len(r.Subscribe)+len(r.Unsubscribe) > 0, r.Unsubscribe
}

func (t *typeState) addName(name string, resolved bool) {
	t.names[name] = resolved
	if !resolved {
		t.unresolvedNames++
	}
}

func (t *typeState) removeName(name string) {
	if resolved, ok := t.names[name]; ok && !resolved {
		t.unresolvedNames--
	}
	delete(t.names, name)
}

// markResolved records that Envoy has accepted the resource called name, or its removal.
func (t *typeState) markResolved(name string) {
	if resolved, ok := t.names[name]; ok && !resolved {
		t.names[name] = true
		t.unresolvedNames--
	}
}

func (t *typeState) unsubscribe(name string) {
	if name == wire.Wildcard {
		t.all = false
		return
	}
	t.removeName(name)
	if !t.all {
		delete(t.heldVersions, name)
	}
}

// replaceNames sets the requested names. It returns whether they changed, and which names Envoy no longer requests.
func (t *typeState) replaceNames(names []string) (changed bool, dropped []string) {
	next := make(map[string]struct{}, len(names))
	for _, name := range names {
		next[name] = struct{}{}
		if _, had := t.names[name]; !had {
			changed = true
			t.addName(name, name == wire.Wildcard)
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

// resolvePending removes the response that r ACKs or NACKs from the pending responses, and returns it. In SotW, it also
// removes the earlier responses. It returns noReply if r does not reply to a pending response.
func (s *streamState) resolvePending(t *typeState, r wire.Request) (replyKind, pendingResponse) {
	if r.Nonce == "" {
		return noReply, pendingResponse{}
	}
	i := slices.IndexFunc(t.pending, func(p pendingResponse) bool { return p.nonce == r.Nonce })
	if i < 0 {
		return noReply, pendingResponse{}
	}
	p := t.pending[i]
	start := i
	// Envoy does not reply to the earlier responses, so the relay does not know whether Envoy accepted them.
	if s.proto == wire.SotW {
		start = 0
		s.supersede(t.pending[:i])
	}
	t.pending = slices.Delete(t.pending, start, i+1)
	if p.message != nil {
		s.pendingBytes -= p.message.Data.Len()
	}
	if r.Rejected {
		t.reject(s.proto, p.Response)
		return nack, p
	}
	t.accept(s.proto, p.Response)
	return ack, p
}

// supersede records pending responses to which Envoy will not reply. It omits responses without a message, because they
// are not stored.
func (s *streamState) supersede(responses []pendingResponse) {
	for _, p := range responses {
		if p.message != nil {
			s.pendingBytes -= p.message.Data.Len()
			s.superseded = append(s.superseded, p)
		}
	}
}

func (t *typeState) accept(v wire.Variant, r wire.Response) {
	t.version, t.responded = r.Version, true
	for _, one := range r.Resources {
		t.markResolved(one.Name)
		if v == wire.Delta {
			t.heldVersions[one.Name] = one.Version
		}
	}
	for _, name := range r.Removed {
		t.markResolved(name)
		delete(t.heldVersions, name)
	}
}

// reject marks the versions of the response's resources as unknown: if Envoy rejects a response, it still uses the
// valid clusters and listeners in it. In SotW it does nothing, because resources have no versions.
func (t *typeState) reject(v wire.Variant, r wire.Response) {
	if v == wire.SotW {
		return
	}
	for _, one := range r.Resources {
		t.heldVersions[one.Name] = ""
	}
}

// addPending records a response that the relay is about to send to Envoy. It returns the nonce for Envoy, and takes
// ownership of the message, which may be nil.
func (s *streamState) addPending(r wire.Response, epoch int, message *wire.Message) (nonce string) {
	nonce = joinNonce(epoch, r.Nonce)
	t := s.types[r.TypeURL]
	if t == nil {
		return nonce
	}
	if message != nil {
		s.pendingBytes += message.Data.Len()
	}
	t.releaseRaw()
	if len(t.pending) >= maxPendingResponses {
		s.supersede(t.pending[:1])
		t.pending = slices.Delete(t.pending, 0, 1)
	}
	t.pending = append(t.pending, pendingResponse{nonce: nonce, message: message, Response: r})
	return nonce
}

// isComplete reports whether Envoy has requested listeners and has accepted a response to each of its requests.
func (s *streamState) isComplete() bool {
	for _, t := range s.types {
		if !t.responded || t.unresolvedNames > 0 || len(t.pending) > 0 {
			return false
		}
	}
	return s.listenersRequested
}

// hasListeners reports whether Envoy has accepted a response with listeners, which it requests last.
func (s *streamState) hasListeners() bool {
	t := s.types[listenerType]
	return t != nil && t.responded
}

// isAwaitingResponse reports whether a request of Envoy has no response yet.
func (s *streamState) isAwaitingResponse() bool {
	for _, t := range s.types {
		if len(t.pending) == 0 && (!t.responded || t.unresolvedNames > 0) {
			return true
		}
	}
	return false
}

// initialRequests returns the first requests of a new upstream stream: Envoy's subscriptions and versions. The caller
// owns the messages.
func (s *streamState) initialRequests() []*wire.Message {
	var messages []*wire.Message
	for i, typeURL := range s.typeOrder {
		t := s.types[typeURL]
		if t.raw != nil && !s.hideVersions {
			messages = append(messages, t.raw.Share())
			continue
		}
		var node []byte
		if i == 0 {
			node = s.node
		}
		messages = append(messages, s.initialRequest(t, node))
	}
	return messages
}

// release frees the recorded requests and responses.
func (s *streamState) release() {
	for _, t := range s.types {
		t.releaseRaw()
		s.supersede(t.pending)
		t.pending = nil
	}
	for _, p := range s.superseded {
		p.message.Free()
	}
	s.superseded = nil
}

func (t *typeState) releaseRaw() {
	if t.raw != nil {
		t.raw.Free()
		t.raw = nil
	}
}

// noncePrefix is the prefix of the nonces that the relay assigns. They are unique. The nonces of control planes are
// not, because two control planes may use the same ones.
const noncePrefix = "pilotfish/"

// joinNonce returns the nonce that is sent to Envoy for a control plane's nonce. For the first upstream stream (epoch
// 1), that is the same nonce. Stored responses have epoch 0.
func joinNonce(epoch int, nonce string) string {
	if epoch == 1 && !strings.HasPrefix(nonce, noncePrefix) {
		return nonce
	}
	return fmt.Sprintf("%s%d/%s", noncePrefix, epoch, nonce)
}

// splitNonce is the inverse of joinNonce: it returns the epoch and the control plane's nonce.
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
