package xdsproxy

// keepBatch is how much of a large response is written at a time.
const keepBatch = 256 << 10

// flowKeeping keeps a response that flows, part by part. What waits to be written is held, and never waited for.
type flowKeeping struct {
	session *session
	keeper  *keeper // that it began with
	stage   uint64  // 0 where nothing is kept
	waiting []flowPart
	bytes   int
}

// flowPart is a part of a response, and what is in it.
type flowPart struct {
	about response
	frame *frame
}

// beginFlow begins to keep a response of a type.
func (s *session) beginFlow(typeURL string) flowKeeping {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := flowKeeping{session: s}
	if s.mayKeep(typeURL) {
		k.keeper = s.keeper
		k.stage = k.keeper.stage.Add(1)
	}
	return k
}

// add keeps a part; it takes a reference of its own.
func (k *flowKeeping) add(r response, part *frame) {
	if k.stage == 0 {
		return
	}
	k.waiting = append(k.waiting, flowPart{r, part.share()})
	if k.bytes += part.data.Len(); k.bytes < keepBatch {
		return
	}
	k.session.mu.Lock()
	defer k.session.mu.Unlock()
	switch {
	case !k.inForce(): // nor will it be again before the response has passed
		k.drop()
		k.stage = 0
	case k.keeper.tryPut(k.write(k.waiting)):
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
	rest, keeper, proto := k.write(k.waiting), k.keeper, k.session.proto
	stage = k.stage
	ok := k.inForce() && k.session.keep(func() {
		rest()
		keeper.writeEnd(proto, stage, r)
	})
	if !ok {
		k.drop()
		return 0
	}
	k.waiting = nil
	return stage
}

// abandon forgets a response that was not completed.
func (k *flowKeeping) abandon() {
	if k.stage == 0 {
		return
	}
	k.drop()
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
}
