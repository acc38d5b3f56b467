package xdsproxy

import "sync"

// maxOutbox limits the relay's own requests that wait to be sent on an upstream stream. The oldest are dropped first,
// because a control plane uses the newest answer.
const maxOutbox = 256

// outbox queues the relay's own requests, such as answers for local types. It never blocks, so a control plane that
// does not read cannot stop the relay from reading.
type outbox struct {
	ready  chan struct{} // contains a value while the queue is not empty
	mu     *sync.Mutex
	frames *[]*frame
}

func newOutbox() outbox {
	return outbox{ready: make(chan struct{}, 1), mu: new(sync.Mutex), frames: new([]*frame)}
}

func (o outbox) put(f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(*o.frames) == maxOutbox {
		*o.frames = (*o.frames)[1:]
	}
	*o.frames = append(*o.frames, f)
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

func (o outbox) drain() []*frame {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames := *o.frames
	*o.frames = nil
	return frames
}
