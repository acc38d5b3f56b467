package xdsproxy

// keepBatch is how much of a large response is written at a time.
const keepBatch = 256 << 10

// flowKeeping keeps a response that flows. It is held in memory, and written when Envoy has accepted it: to write it while
// Envoy takes it would take the time from Envoy. What is too large for that is written part by part; what waits for that is
// held, and never waited for.
type flowKeeping struct {
	session *session
	keeper  *keeper // that it began with
	stage   uint64  // 0 where nothing is kept
	held    *held   // nil where it is written as it passes
	waiting []flowPart
	bytes   int
}

// flowPart is a part of a response, and what is in it.
type flowPart struct {
	about response
	frame *frame
}

// beginFlow begins to keep a response of a type and a size.
func (s *session) beginFlow(typeURL string, size int) flowKeeping {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := flowKeeping{session: s}
	if s.mayKeep(typeURL) {
		k.keeper = s.keeper
		k.stage = k.keeper.stage.Add(1)
		k.held = s.relay.hold(size)
	}
	return k
}

// add keeps a part; of one that is to be written it takes a reference of its own.
func (k *flowKeeping) add(r response, part *frame) {
	switch {
	case k.stage == 0:
		return
	case k.held != nil:
		k.held.pages.append(part.data)
		return
	}
	k.waiting = append(k.waiting, flowPart{r, part.share()})
	if k.bytes += part.data.Len(); k.bytes < keepBatch {
		return
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	if k.inForce() && k.keeper.tryPut(k.write(k.waiting)) {
		k.waiting, k.bytes = nil, 0
	}
}

// write writes parts, and frees them.
func (k *flowKeeping) write(parts []flowPart) func() {
	keeper, stage := k.keeper, k.stage
	return func() {
		for _, part := range parts {
			keeper.writeResources(stage, part.about, part.frame)
			part.frame.free()
		}
	}
}

// end keeps what is left of the response, and gives the number under which it is; the caller does not hold the lock.
func (k *flowKeeping) end(r response) (stage uint64) {
	if k.stage == 0 {
		return 0
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	if !k.inForce() || !k.finish(r) {
		k.drop()
		return 0
	}
	k.waiting, k.held = nil, nil
	return k.stage
}

// finish hands over what is left; the caller holds the session's lock.
func (k *flowKeeping) finish(r response) (ok bool) {
	if k.held != nil {
		k.held.about = r
		k.session.keepHeld(k.stage, k.held)
		return true
	}
	rest, keeper, stage, proto := k.write(k.waiting), k.keeper, k.stage, k.session.proto
	return k.session.keep(func() {
		rest()
		keeper.writeEnd(proto, stage, r)
	})
}

// abandon forgets a response that was not completed.
func (k *flowKeeping) abandon() {
	if k.stage == 0 {
		return
	}
	wasHeld := k.held != nil
	k.drop()
	if wasHeld {
		return
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	if keeper, stage := k.keeper, k.stage; k.inForce() {
		k.session.keep(func() { keeper.store.Rejected(stage) })
	}
}

// inForce says whether what was begun still goes on; the caller holds the session's lock.
func (k *flowKeeping) inForce() bool {
	m := &k.session.keeping
	return m.begun && !m.lost && k.session.keeper == k.keeper
}

func (k *flowKeeping) drop() {
	for _, part := range k.waiting {
		part.frame.free()
	}
	k.waiting = nil
	if k.held != nil {
		k.held.free()
		k.held = nil
	}
}
