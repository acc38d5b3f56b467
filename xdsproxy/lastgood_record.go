package xdsproxy

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	// checkpointDelay is how long related changes are awaited before a checkpoint. If Envoy's configuration stays
	// incomplete, a checkpoint is written after maxCheckpointDelays. A replacement of the stored configuration waits
	// for maxReplacementDelays, which is longer than the detection of a dead control plane.
	checkpointDelay      = 200 * time.Millisecond
	longCheckpointDelay  = 5 * time.Second
	maxCheckpointDelays  = 25
	maxReplacementDelays = maxCheckpointDelays + 12
)

// errRestarted ends an upstream stream that is replaced by another immediately.
var errRestarted = errors.New("the stream is restarted")

// errSilent ends an upstream stream on which nothing arrived.
var errSilent = errors.New("the control plane does not answer")

// lastGoodRecord is a session's state of the last good configuration. It is guarded by the session's mu, except isDue
// and timer, which only the session's main loop uses.
type lastGoodRecord struct {
	id           lastgood.Identity
	isIdentified bool // id is known, and the client's configuration is to be stored
	// hadConfig: Envoy already had configuration when its stream started.
	hadConfig bool
	// isComplete: Envoy has received everything that it requested, and does not need stored configuration.
	isComplete bool

	// isDue: the last good configuration is to be served. isLookedUp: it was loaded, or there is none.
	isDue, isLookedUp bool
	timer             <-chan time.Time
	// diskResumes counts how often a hung disk resumed.
	diskResumes int
	// served: Envoy received the last good configuration. snapshot is open until a control plane answers.
	served   bool
	snapshot *lastgood.Snapshot
	upToDate time.Time

	// isWriting: accepted resources are written. hasFailed: writing stopped because of an error. refetch: all resources
	// are to be requested again, in order to store them; it is set some time after an error.
	isWriting, hasFailed, refetch bool
	// isReplacing: the written configuration is to replace the stored one, and has no checkpoint yet.
	isReplacing                 bool
	restart                     context.CancelCauseFunc // ends the upstream stream; nil if there is none
	checkpointTimer, retryTimer *time.Timer
	checkpointDelays            int
	retryDelay                  time.Duration
}

// needsRefetch reports whether the control plane is to send all resources.
func (k *lastGoodRecord) needsRefetch() bool { return k.refetch || k.hadConfig && !k.isWriting }

// close stops the timers and closes the snapshot; the caller holds mu.
func (k *lastGoodRecord) close() {
	for _, t := range []*time.Timer{k.checkpointTimer, k.retryTimer} {
		if t != nil {
			t.Stop()
		}
	}
	k.isWriting, k.hasFailed, k.retryTimer = false, true, nil
	k.closeSnapshot()
}

func (k *lastGoodRecord) closeSnapshot() {
	if k.snapshot != nil {
		_ = k.snapshot.Close()
		k.snapshot = nil
	}
}

// recordResponse queues a response for writing and returns its stage, or 0 if it is not recorded; the caller holds mu.
func (s *session) recordResponse(epoch int, r response, f *frame) (stage uint64) {
	if f == nil || !s.canRecord(r.typeURL) {
		return 0
	}
	writer := s.writer
	stage = writer.stage.Add(1)
	shared := f.share()
	ok := s.enqueueWrite(func() {
		defer shared.free()
		writer.writeResponse(s.proto, stage, r, shared)
	})
	if !ok {
		shared.free()
		return 0
	}
	return stage
}

// canRecord reports whether a response of the control plane is recorded, and starts recording if necessary. It closes
// the snapshot, because the control plane answers. The caller holds mu.
func (s *session) canRecord(typeURL string) bool {
	k := &s.record
	k.closeSnapshot()
	if s.writer == nil || !k.isIdentified || k.hasFailed || s.state.types[typeURL] == nil {
		return false
	}
	if !k.isWriting {
		if !s.followActiveWriter() {
			return false
		}
		s.startRecording()
	}
	return true
}

// startRecording starts to write. It appends to the stored configuration if Envoy received that, and replaces it
// otherwise.
func (s *session) startRecording() {
	k, writer := &s.record, s.writer
	replace := !k.served || k.refetch
	k.isWriting, k.refetch, k.isReplacing = true, false, replace
	s.state.clearStages()
	if replace {
		s.state.resetResponded()
	}
	writer.mu.Lock()
	writer.onFailure, writer.isSlowLogged = s.onWriteFailed, false
	writer.mu.Unlock()
	id := k.id
	s.enqueueWrite(func() { writer.store.Begin(id, replace) })
}

// enqueueWrite queues a write and reports whether it was queued; the caller holds mu.
func (s *session) enqueueWrite(do func()) bool {
	k := &s.record
	if !k.isWriting || k.hasFailed {
		return false
	}
	if !s.writer.enqueue(do) {
		s.stopRecording()
		return false
	}
	return true
}

// onWriteFailed is called when a queued write has failed.
func (s *session) onWriteFailed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.isWriting && !s.record.hasFailed {
		s.stopRecording()
	}
}

// stopRecording stops writing and schedules a restart; the caller holds mu.
func (s *session) stopRecording() {
	k := &s.record
	k.hasFailed = true
	k.retryDelay = min(max(2*k.retryDelay, s.relay.config.LastGood.retry), maxRecordRetry)
	wait := k.retryDelay
	if s.diskWriter.active() != s.writer {
		wait = min(wait, hangRetry)
	}
	k.retryTimer = time.AfterFunc(wait, s.restartRecording)
}

// followActiveWriter switches to the active writer before writing starts. If Envoy's configuration was served from
// another writer's store, it cannot be appended to, so recording restarts later with all resources. The caller holds
// mu.
func (s *session) followActiveWriter() (ok bool) {
	k := &s.record
	now := s.diskWriter.active()
	if now == s.writer {
		return true
	}
	if !k.served || k.refetch {
		s.writer = now
		return true
	}
	s.stopRecording()
	return false
}

// restartRecording restarts the upstream stream and requests all resources again, because those that were not written
// cannot be obtained otherwise. It waits for the end of a response of which Envoy may have a part.
func (s *session) restartRecording() {
	s.deliverMu.Lock()
	defer s.deliverMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.record
	if k.retryTimer == nil {
		return
	}
	s.writer = s.diskWriter.active()
	k.isWriting, k.hasFailed, k.refetch = false, false, true
	if k.restart != nil {
		k.restart(errRestarted)
	}
}

// recordRequest writes the effects of a request: its ACK or NACK, and dropped subscriptions. The caller holds mu.
func (s *session) recordRequest(h requestInfo) {
	k := &s.record
	if s.writer == nil {
		return
	}
	k.isComplete = k.isComplete || h.answer == ack && s.state.isComplete()
	if !k.isIdentified && s.state.node != nil && h.first {
		k.id, k.isIdentified = nodeIdentity(s.proto, s.state.node)
		k.hadConfig = s.state.hadConfig
	}
	if !k.isWriting || k.hasFailed {
		return
	}
	store := s.writer.store
	s.recordSuperseded()
	if stage := h.answered.stage; stage != 0 {
		bad, some := rejectedNames(s.proto, h)
		if h.answer == ack || some {
			s.enqueueWrite(func() { store.Accept(stage, bad...) })
		} else {
			s.enqueueWrite(func() { store.Reject(stage) })
		}
	}
	for _, name := range h.dropped {
		s.enqueueWrite(func() { store.Unsubscribe(h.typeURL, name) })
	}
	if h.answered.stage != 0 || len(h.dropped) > 0 {
		s.scheduleCheckpoint()
	}
}

// recordSuperseded rejects the stages of responses that Envoy will not answer; the caller holds mu.
func (s *session) recordSuperseded() {
	superseded, store := s.state.superseded, s.writer.store
	s.state.superseded = nil
	for _, stage := range superseded {
		s.enqueueWrite(func() { store.Reject(stage) })
	}
}

// rejectedNames returns the resources that Envoy rejected in a response of which it accepted others. Envoy does so for
// clusters and listeners, and names the rejected ones in its reason.
func rejectedNames(v variant, h requestInfo) (bad []string, some bool) {
	if h.answer != nack || v != delta || !isFullState(h.typeURL) || len(h.reason) >= maxString || strings.HasSuffix(h.reason, "(truncated)") {
		return nil, false
	}
	for _, one := range h.answered.resources {
		if hasReasonFor(h.reason, one.name) {
			bad = append(bad, one.name)
		}
	}
	return bad, len(bad) > 0 && len(bad) < len(h.answered.resources)
}

// scheduleCheckpoint schedules a checkpoint after checkpointDelay; the caller holds mu.
func (s *session) scheduleCheckpoint() {
	if k := &s.record; k.checkpointTimer == nil {
		k.checkpointTimer = time.AfterFunc(checkpointDelay, s.writeCheckpoint)
	}
}

// writeCheckpoint writes a checkpoint if Envoy has everything that it requested, and otherwise tries again later.
func (s *session) writeCheckpoint() {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.record
	switch k.checkpointDelays++; {
	case k.hasFailed || !k.isWriting:
		k.checkpointTimer, k.checkpointDelays = nil, 0
	case s.state.isComplete() || s.isCompleteEnough():
		k.checkpointTimer, k.checkpointDelays = nil, 0
		k.isComplete, k.isReplacing = true, false
		s.enqueueWrite(s.writer.store.Checkpoint)
	case k.checkpointDelays < maxCheckpointDelays:
		k.checkpointTimer.Reset(checkpointDelay)
	default:
		k.checkpointTimer.Reset(longCheckpointDelay)
	}
}

// isCompleteEnough reports whether requests have been unanswered for so long, with a control plane connected, that a
// checkpoint is written without them.
func (s *session) isCompleteEnough() bool {
	k := &s.record
	switch {
	case k.restart == nil:
		return false
	case k.isReplacing:
		return k.checkpointDelays > maxReplacementDelays && s.state.hasListeners()
	}
	return k.checkpointDelays >= maxCheckpointDelays
}

// confirmUpToDate records that Envoy's configuration is up to date.
func (s *session) confirmUpToDate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.record.isWriting {
		s.enqueueWrite(s.writer.store.ConfirmUpToDate)
	}
}
