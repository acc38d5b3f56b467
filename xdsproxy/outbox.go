package xdsproxy

import "github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"

import "sync"

// maxOutbox limits the relay's own requests that wait to be sent on an upstream stream. The oldest are dropped first,
// because a control plane uses the newest answer.
const maxOutbox = 256

// outbox queues the relay's own requests, such as answers for local types. It never blocks, so a control plane that
// does not read cannot stop the relay from reading.
type outbox struct {
	ready    chan struct{} // contains a value while the queue is not empty
	mu       *sync.Mutex
	messages *[]*wire.Message
}

func newOutbox() outbox {
	return outbox{ready: make(chan struct{}, 1), mu: new(sync.Mutex), messages: new([]*wire.Message)}
}

func (o outbox) put(f *wire.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(*o.messages) == maxOutbox {
		*o.messages = (*o.messages)[1:]
	}
	*o.messages = append(*o.messages, f)
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

func (o outbox) drain() []*wire.Message {
	o.mu.Lock()
	defer o.mu.Unlock()
	messages := *o.messages
	*o.messages = nil
	return messages
}
