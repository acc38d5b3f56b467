package xdsproxy

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
)

const (
	// markDelay is how long changes are waited for that belong to the one that came. A state that never becomes whole is as
	// whole as it gets after maxMarkDelays of them; where it is to take the place of another one, after longer than it
	// takes to notice that a control plane is dead.
	markDelay          = 200 * time.Millisecond
	longMarkDelay      = 5 * time.Second
	maxMarkDelays      = 25
	maxMarkDelaysFresh = maxMarkDelays + 12
)

// errRenewed ends a stream upstream that is to be followed by another at once.
var errRenewed = errors.New("the stream is begun anew")

// errSilent ends a stream upstream on which nothing came.
var errSilent = errors.New("the control plane does not answer")

// keeping is what a session has to do with the last good configuration. The session's lock guards it, but for due and
// timer, which are of the session's main loop.
type keeping struct {
	id    lastgood.Identity
	known bool // who Envoy is, and that what it has is to be kept
	// continued says that Envoy had configuration already when its stream began.
	continued bool
	// settled says that Envoy has had all that it asked for, and needs nothing from before any more.
	settled bool

	// due says that Envoy is to get the last good configuration, and offered that it was looked for.
	due, offered bool
	timer        <-chan time.Time
	// resumed counts how often the disk went on that had stood still.
	resumed int
	// served says that Envoy got it. It is open until a control plane has answered.
	served   bool
	snapshot *lastgood.Snapshot
	upToDate time.Time

	// begun says that what Envoy accepts is written, and lost that it no longer is. Then refetch is set after a while: all is
	// to be asked for anew.
	begun, lost, refetch bool
	// fresh says that what is written is to take the place of what is kept, and has not yet.
	fresh       bool
	renew       context.CancelCauseFunc // of the stream upstream; nil for none
	mark, retry *time.Timer
	markDelays  int
	retryAfter  time.Duration
}

// refetches says whether control planes are to send everything.
func (k *keeping) refetches() bool { return k.refetch || k.continued && !k.begun }

// end ends what runs and is open; the caller holds the lock.
func (k *keeping) end() {
	for _, t := range []*time.Timer{k.mark, k.retry} {
		if t != nil {
			t.Stop()
		}
	}
	k.begun, k.lost, k.retry = false, true, nil
	k.closeSnapshot()
}

func (k *keeping) closeSnapshot() {
	if k.snapshot != nil {
		_ = k.snapshot.Close()
		k.snapshot = nil
	}
}

// keepResponse queues a response to be kept, and gives the number under which it is; the caller holds the lock.
func (s *session) keepResponse(epoch int, r response, f *frame) (stage uint64) {
	if f == nil || !s.mayKeep(r.typeURL) {
		return 0
	}
	keeper := s.keeper
	stage = keeper.stage.Add(1)
	shared := f.share()
	ok := s.keep(func() {
		defer shared.free()
		keeper.writeResponse(s.proto, stage, r, shared)
	})
	if !ok {
		shared.free()
		return 0
	}
	return stage
}

// mayKeep says whether a response of the control plane's is to be kept, and begins with that; the caller holds the lock.
func (s *session) mayKeep(typeURL string) bool {
	k := &s.keeping
	k.closeSnapshot()
	if s.keeper == nil || !k.known || k.lost || s.state.types[typeURL] == nil {
		return false
	}
	if !k.begun {
		if !s.followDisk() {
			return false
		}
		s.beginKeeping()
	}
	return true
}

// beginKeeping begins to write: after what is there, if that is what Envoy has, or else anew.
func (s *session) beginKeeping() {
	k, keeper := &s.keeping, s.keeper
	anew := !k.served || k.refetch
	k.begun, k.refetch, k.fresh = true, false, anew
	s.state.forgetStages()
	if anew {
		s.state.forgetAnswers()
	}
	keeper.mu.Lock()
	keeper.failed, keeper.behind = s.keepFailed, false
	keeper.mu.Unlock()
	id := k.id
	s.keep(func() { keeper.store.Begin(id, anew) })
}

// keep queues something to write; the caller holds the lock.
func (s *session) keep(do func()) bool {
	k := &s.keeping
	if !k.begun || k.lost {
		return false
	}
	if !s.keeper.put(do) {
		s.loseKeeping()
		return false
	}
	return true
}

// keepFailed is called when what is queued could not be written.
func (s *session) keepFailed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeping.begun && !s.keeping.lost {
		s.loseKeeping()
	}
}

// loseKeeping stops writing, and sees to it that it begins again; the caller holds the lock.
func (s *session) loseKeeping() {
	k := &s.keeping
	k.lost = true
	k.retryAfter = min(max(2*k.retryAfter, s.relay.config.LastGood.retry), maxRetryKeeping)
	wait := k.retryAfter
	if s.disk.inForce() != s.keeper {
		wait = min(wait, soonKeeping)
	}
	k.retry = time.AfterFunc(wait, s.renewKeeping)
}

// followDisk goes to the keeper that is in force before writing begins. When what Envoy has is from another one, that is
// nothing to go on from, and all is asked for anew; the caller holds the lock.
func (s *session) followDisk() (ok bool) {
	k := &s.keeping
	now := s.disk.inForce()
	if now == s.keeper {
		return true
	}
	if !k.served || k.refetch {
		s.keeper = now
		return true
	}
	s.loseKeeping()
	return false
}

// renewKeeping asks the control plane for everything again, since what was not kept can be had from nowhere else. It does not
// do so in the middle of a response, of which Envoy may have a part.
func (s *session) renewKeeping() {
	s.delivering.Lock()
	defer s.delivering.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.keeping
	if k.retry == nil {
		return
	}
	s.keeper = s.disk.inForce()
	k.begun, k.lost, k.refetch = false, false, true
	if k.renew != nil {
		k.renew(errRenewed)
	}
}

// keepHeard keeps what follows from a request; the caller holds the lock.
func (s *session) keepHeard(h heard) {
	k := &s.keeping
	if s.keeper == nil {
		return
	}
	k.settled = k.settled || h.verdict == accepted && s.state.isWhole()
	if !k.known && s.state.node != nil && h.first {
		k.id, k.known = identify(s.proto, s.state.node)
		k.continued = s.state.continued
	}
	if !k.begun || k.lost {
		return
	}
	store := s.keeper.store
	s.keepPassed()
	if stage := h.about.stage; stage != 0 {
		bad, some := rejectedNames(s.proto, h)
		if h.verdict == accepted || some {
			s.keep(func() { store.Accepted(stage, bad...) })
		} else {
			s.keep(func() { store.Rejected(stage) })
		}
	}
	for _, name := range h.dropped {
		s.keep(func() { store.Dropped(h.typeURL, name) })
	}
	if h.about.stage != 0 || len(h.dropped) > 0 {
		s.touched()
	}
}

// keepPassed forgets the responses that will not be answered any more; the caller holds the lock.
func (s *session) keepPassed() {
	passed, store := s.state.passed, s.keeper.store
	s.state.passed = nil
	for _, stage := range passed {
		s.keep(func() { store.Rejected(stage) })
	}
}

// rejectedNames are the resources that Envoy rejected of a response of which it accepted some. It does so with clusters and
// listeners, and names in its message those that it rejected.
func rejectedNames(v variant, h heard) (bad []string, some bool) {
	if h.verdict != rejected || v != delta || !isWhole(h.typeURL) || len(h.reason) >= maxString || strings.HasSuffix(h.reason, "(truncated)") {
		return nil, false
	}
	for _, one := range h.about.resources {
		if isBlamed(h.reason, one.name) {
			bad = append(bad, one.name)
		}
	}
	return bad, len(bad) > 0 && len(bad) < len(h.about.resources)
}

// touched sees to it that the log is marked soon; the caller holds the lock.
func (s *session) touched() {
	if k := &s.keeping; k.mark == nil {
		k.mark = time.AfterFunc(markDelay, s.markWhole)
	}
}

// markWhole marks the log when Envoy has everything that it asked for.
func (s *session) markWhole() {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := &s.keeping
	switch k.markDelays++; {
	case k.lost || !k.begun:
		k.mark, k.markDelays = nil, 0
	case s.state.isWhole() || s.isAsWholeAsItGets():
		k.mark, k.markDelays = nil, 0
		k.settled, k.fresh = true, false
		s.keep(s.keeper.store.Mark)
	case k.markDelays < maxMarkDelays:
		k.mark.Reset(markDelay)
	default:
		k.mark.Reset(longMarkDelay)
	}
}

// isAsWholeAsItGets says that what is still open has been so for long, while a control plane was there to answer.
func (s *session) isAsWholeAsItGets() bool {
	k := &s.keeping
	switch {
	case k.renew == nil:
		return false
	case k.fresh:
		return k.markDelays > maxMarkDelaysFresh && s.state.hasListeners()
	}
	return k.markDelays >= maxMarkDelays
}

// keepSeen notes until when what Envoy has was up to date.
func (s *session) keepSeen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeping.begun {
		s.keep(s.keeper.store.Seen)
	}
}
