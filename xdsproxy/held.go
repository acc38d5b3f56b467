package xdsproxy

import "time"

const (
	// maxHeld bounds the memory of responses that are held until Envoy has answered them. What is larger is written as it
	// passes.
	maxHeld = 128 << 20
	// heldPatience is how long Envoy's answer is waited for before a response is written without.
	heldPatience = 10 * time.Second
)

// held is a response that waits for Envoy's answer.
type held struct {
	relay *Relay
	size  int64
	about response
	pages *pages
	timer *time.Timer
}

// hold makes room for a response; nil if there is none.
func (r *Relay) hold(size int) *held {
	h := &held{relay: r, size: int64(size)}
	if r.holding.Add(h.size) > maxHeld {
		r.holding.Add(-h.size)
		return nil
	}
	var err error
	if h.pages, err = newPages(size); err != nil {
		r.holding.Add(-h.size)
		r.log.Debug("a response is written to the disk while it passes", "size", size, "reason", err)
		return nil
	}
	return h
}

// free forgets it; whoever has it must not do so twice.
func (h *held) free() {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.pages.free()
	h.relay.holding.Add(-h.size)
}

// keepHeld holds a response until Envoy has answered it, but not for long; the caller holds the lock.
func (s *session) keepHeld(stage uint64, h *held) {
	k := &s.keeping
	if k.held == nil {
		k.held = make(map[uint64]*held)
	}
	k.held[stage] = h
	h.timer = time.AfterFunc(h.relay.config.LastGood.unanswered, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if k.held[stage] == h {
			s.writeHeld(stage)
		}
	})
}

// writeHeld queues a response to be written, if it is one that was held; the caller holds the lock.
func (s *session) writeHeld(stage uint64) {
	h := s.keeping.takeHeld(stage)
	if h == nil {
		return
	}
	keeper, proto := s.keeper, s.proto
	ok := s.keep(func() {
		defer h.free()
		keeper.passed = h.pages.drop
		defer func() { keeper.passed = nil }()
		keeper.writeResponse(proto, stage, h.about, h.pages.frame())
	})
	if !ok {
		h.free()
	}
}

// takeHeld gives a response that is held to the caller; nil if there is none.
func (k *keeping) takeHeld(stage uint64) *held {
	h := k.held[stage]
	delete(k.held, stage)
	return h
}

// dropHeld forgets a response, if it is one that is held.
func (k *keeping) dropHeld(stage uint64) {
	if h := k.takeHeld(stage); h != nil {
		h.free()
	}
}

// dropAllHeld forgets what cannot be kept any more.
func (k *keeping) dropAllHeld() {
	for stage := range k.held {
		k.dropHeld(stage)
	}
}
