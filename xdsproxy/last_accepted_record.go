package xdsproxy

import (
	"errors"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// errRestarted is the cause of the end of an upstream stream that the relay itself replaces by a new one.
var errRestarted = errors.New("the stream is restarted")

// errSilent is the cause of the end of an upstream stream on which an awaited response did not arrive in time.
var errSilent = errors.New("the control plane does not answer")

// lastGoodRecord is the state of a session for serving the last accepted configuration to Envoy and for recording a new
// one. The session's mu guards it, except isDue, timer, loading and loadWait, which only session.run uses.
type lastGoodRecord struct {
	id           lastgood.Identity
	isIdentified bool // id is known, and the relay stores the configuration of this client
	// hadConfig: Envoy already had configuration when its stream started.
	hadConfig bool
	// isComplete: Envoy has accepted everything that it requested, so it does not need the last accepted configuration.
	isComplete bool

	// isDue: no control plane has responded in time, so the relay must serve the last accepted configuration. isLoaded:
	// the session has requested it from the store.
	isDue, isLoaded bool
	// timer fires when ConnectWait has passed.
	timer <-chan time.Time
	// loading receives the last accepted configuration; nil if the store is not loading it.
	loading <-chan *lastgood.Snapshot
	// loadWait fires when maxLoadWait has passed. While it is not nil, the session does not use a connection to a
	// control plane.
	loadWait <-chan time.Time
	// snapshot is the last accepted configuration while the relay serves Envoy from it. The session closes it when a
	// control plane responds. upToDate is the last time at which it was known to be that of the control plane.
	snapshot *lastgood.Snapshot
	upToDate time.Time

	// recording stores accepted resources. It is nil before the first response of a control plane.
	recording *lastgood.Recording
}

func (k *lastGoodRecord) closeSnapshot() {
	if k.snapshot != nil {
		_ = k.snapshot.Close()
		k.snapshot = nil
	}
}

// nodeIdentity returns the identity of a node. ok is false if the node has no ID or is not an Envoy. The relay does not
// store the configuration of such a client.
func nodeIdentity(v wire.Variant, node []byte) (id lastgood.Identity, ok bool) {
	var n corev3.Node
	if err := proto.Unmarshal(node, &n); err != nil || n.Id == "" {
		return id, false
	}
	// A client that is not Envoy may have the same node as Envoy.
	if agent := n.UserAgentName; agent != "" && agent != "envoy" {
		return id, false
	}
	return lastgood.Identity{Node: n.Id, Cluster: n.Cluster, Protocol: v.String()}, true
}

// recordResponse records the response r of a control plane, whose message is m. If m is nil, it does nothing: the
// response is not from a control plane, or must not be stored. Otherwise it closes the snapshot, because the control
// plane now serves Envoy. It returns a reference to m, which the store saves if Envoy accepts the response. It returns
// nil if nothing is stored for this client. The caller holds mu.
func (s *session) recordResponse(r wire.Response, m *wire.Message) *wire.Message {
	if m == nil {
		return nil
	}
	k := &s.record
	k.closeSnapshot()
	if s.store == nil || !k.isIdentified || s.state.types[r.TypeURL] == nil {
		return nil
	}
	if k.recording == nil {
		k.recording = s.store.Begin(k.id)
	}
	if !k.recording.IsActive() {
		return nil
	}
	if int64(s.state.pendingBytes+m.Data.Len()) > s.relay.config.LastGood.MaxBytes {
		k.recording.Fail(lastgood.ErrTooBig)
		return nil
	}
	return m.Share()
}

// recordRequest records the effects of a request: the ACK or NACK that it contains, and the subscriptions that it ends.
// The caller holds mu.
func (s *session) recordRequest(h requestInfo) {
	k := &s.record
	if s.store == nil {
		return
	}
	if !k.isIdentified && s.state.node != nil && h.first {
		k.id, k.isIdentified = nodeIdentity(s.proto, s.state.node)
		k.hadConfig = s.state.hadConfig
	}
	if k.recording != nil {
		s.recordReply(h)
	}
	if !k.isComplete && h.reply == ack && s.state.isComplete() {
		k.isComplete = true
		if k.recording != nil {
			k.recording.Complete(s.state.typesToPrune(), s.isInUse)
		}
	}
}

// recordReply notifies the recording which resources Envoy accepted or rejected with the request h, and which names
// Envoy no longer requests.
func (s *session) recordReply(h requestInfo) {
	r := s.record.recording
	if m := h.repliedTo.message; m != nil {
		rejected, isPartial := rejectedNames(s.proto, h)
		if h.reply == ack || isPartial {
			r.Accept(h.repliedTo.Response, m, s.proto == wire.SotW && isFullState(h.TypeURL), rejected)
		} else {
			r.Invalidate(h.repliedTo.Response)
			m.Free()
		}
	}
	for _, p := range s.state.superseded {
		r.Invalidate(p.Response)
		p.message.Free()
	}
	s.state.superseded = nil
	r.Remove(h.TypeURL, h.dropped)
}

// isFullState reports whether a SotW response of the type contains all resources. For types other than clusters and
// listeners, a response may contain only the changed resources.
func isFullState(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }

// typesToPrune returns the types whose files may contain resources that Envoy no longer has. It omits SotW types of
// which each response replaces the whole file.
func (s *streamState) typesToPrune() (types []string) {
	for typeURL := range s.types {
		if s.proto == wire.Delta || !isFullState(typeURL) {
			types = append(types, typeURL)
		}
	}
	return types
}

// isInUse reports whether Envoy has the resource called name (delta), or requests it (SotW).
func (s *session) isInUse(typeURL, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.state.types[typeURL]
	if t == nil {
		return false
	}
	_, inUse := t.heldVersions[name]
	if s.proto == wire.SotW {
		_, inUse = t.names[name]
	}
	return inUse
}

// rejectedNames returns the names of the resources that a NACK reports as rejected. isPartial reports whether Envoy
// accepted the other resources of the response. Envoy does so only for clusters and listeners in delta. For other
// NACKs, and if the reason may be truncated, rejectedNames returns nil and false.
func rejectedNames(v wire.Variant, h requestInfo) (bad []string, isPartial bool) {
	if h.reply != nack || v != wire.Delta || !isFullState(h.TypeURL) || len(h.Reason) >= wire.MaxString || strings.HasSuffix(h.Reason, "(truncated)") {
		return nil, false
	}
	for _, one := range h.repliedTo.Resources {
		if hasReasonFor(h.Reason, one.Name) {
			bad = append(bad, one.Name)
		}
	}
	return bad, len(bad) > 0 && len(bad) < len(h.repliedTo.Resources)
}

// confirmUpToDate records in the store that Envoy has the current configuration of the control plane.
func (s *session) confirmUpToDate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.recording != nil {
		s.record.recording.MarkUpToDate()
	}
}
