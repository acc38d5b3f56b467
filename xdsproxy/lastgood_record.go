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

// errRestarted ends an upstream stream that is replaced by another immediately.
var errRestarted = errors.New("the stream is restarted")

// errSilent ends an upstream stream on which nothing arrived.
var errSilent = errors.New("the control plane does not answer")

// lastGoodRecord is a session's state of the last good configuration. It is guarded by the session's mu, except isDue,
// timer, loading and loadWait, which only the session's main loop uses.
type lastGoodRecord struct {
	id           lastgood.Identity
	isIdentified bool // id is known, and the client's configuration is to be stored
	// hadConfig: Envoy already had configuration when its stream started.
	hadConfig bool
	// isComplete: Envoy has received everything that it requested, and does not need stored configuration.
	isComplete bool

	// isDue: the last good configuration is to be served. isLookedUp: it was requested from the store.
	isDue, isLookedUp bool
	timer             <-chan time.Time
	// loading receives the last good configuration; nil if it was not requested.
	loading <-chan *lastgood.Snapshot
	// loadWait fires when a control plane is used in spite of loading; nil if it is.
	loadWait <-chan time.Time
	// snapshot is the last good configuration that Envoy receives. It is open until a control plane answers.
	snapshot *lastgood.Snapshot
	upToDate time.Time

	// recording records accepted resources. It is nil before the first response of a control plane.
	recording *lastgood.Recording
}

func (k *lastGoodRecord) closeSnapshot() {
	if k.snapshot != nil {
		_ = k.snapshot.Close()
		k.snapshot = nil
	}
}

// nodeIdentity returns the identity of a node. It returns false for clients whose configuration is not stored.
func nodeIdentity(v wire.Variant, node []byte) (id lastgood.Identity, ok bool) {
	var n corev3.Node
	if err := proto.Unmarshal(node, &n); err != nil || n.Id == "" {
		return id, false
	}
	// Clients other than Envoy may use the same node.
	if agent := n.UserAgentName; agent != "" && agent != "envoy" {
		return id, false
	}
	return lastgood.Identity{Node: n.Id, Cluster: n.Cluster, Protocol: v.String()}, true
}

// recordResponse returns a reference to a response of the control plane, which is stored if Envoy accepts it, or nil if
// it is not stored. It closes the snapshot, because the control plane answers. The caller holds mu.
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

// recordRequest records the effects of a request: its ACK or NACK, and dropped subscriptions. The caller holds mu.
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
		s.recordAnswer(h)
	}
	if !k.isComplete && h.answer == ack && s.state.isComplete() {
		k.isComplete = true
		if k.recording != nil {
			k.recording.Complete(s.state.typesToPrune(), s.isHeld)
		}
	}
}

// recordAnswer records Envoy's answer to a response, and the names that it no longer requests.
func (s *session) recordAnswer(h requestInfo) {
	r := s.record.recording
	if m := h.answered.message; m != nil {
		rejected, some := rejectedNames(s.proto, h)
		if h.answer == ack || some {
			r.Accept(h.answered.Response, m, s.proto == wire.SotW && isFullState(h.TypeURL), rejected)
		} else {
			r.Invalidate(h.answered.Response)
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

// isFullState reports whether a SotW response of the type contains all resources. For other types a server may send
// only changes.
func isFullState(typeURL string) bool { return typeURL == clusterType || typeURL == listenerType }

// typesToPrune returns the types whose stored resources may include some that Envoy does not have.
func (s *streamState) typesToPrune() (types []string) {
	for typeURL := range s.types {
		if s.proto == wire.Delta || !isFullState(typeURL) {
			types = append(types, typeURL)
		}
	}
	return types
}

// isHeld reports whether Envoy has a resource, or in SotW requests it.
func (s *session) isHeld(typeURL, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.state.types[typeURL]
	if t == nil {
		return false
	}
	_, held := t.heldVersions[name]
	if s.proto == wire.SotW {
		_, held = t.names[name]
	}
	return held
}

// rejectedNames returns the resources that Envoy rejected in a response of which it accepted others. Envoy does so for
// clusters and listeners, and names the rejected ones in its reason.
func rejectedNames(v wire.Variant, h requestInfo) (bad []string, some bool) {
	if h.answer != nack || v != wire.Delta || !isFullState(h.TypeURL) || len(h.Reason) >= wire.MaxString || strings.HasSuffix(h.Reason, "(truncated)") {
		return nil, false
	}
	for _, one := range h.answered.Resources {
		if hasReasonFor(h.Reason, one.Name) {
			bad = append(bad, one.Name)
		}
	}
	return bad, len(bad) > 0 && len(bad) < len(h.answered.Resources)
}

// confirmUpToDate records that Envoy's configuration is up to date.
func (s *session) confirmUpToDate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.recording != nil {
		s.record.recording.MarkUpToDate()
	}
}
