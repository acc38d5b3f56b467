package xdsproxy

import "sync"

// maxOwn bounds what the relay has to say itself on one stream upstream and could not say yet. Answers to old responses
// are dropped first: a control plane goes by the newest.
const maxOwn = 256

// outbox is what the relay has to say itself: answers to responses that are not Envoy's to answer. It never blocks, so
// that a control plane that sends and does not read cannot stop the relay from reading.
type outbox struct {
	filled chan struct{} // holds one while there is something
	mu     *sync.Mutex
	frames *[]*frame
}

func newOutbox() outbox {
	return outbox{filled: make(chan struct{}, 1), mu: new(sync.Mutex), frames: new([]*frame)}
}

func (o outbox) put(f *frame) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(*o.frames) == maxOwn {
		*o.frames = (*o.frames)[1:]
	}
	*o.frames = append(*o.frames, f)
	select {
	case o.filled <- struct{}{}:
	default:
	}
}

func (o outbox) take() []*frame {
	o.mu.Lock()
	defer o.mu.Unlock()
	frames := *o.frames
	*o.frames = nil
	return frames
}
