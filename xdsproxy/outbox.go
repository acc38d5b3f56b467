package xdsproxy

import (
	"sync"

	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// maxOutbox limits the relay's own requests that are queued for an upstream stream. At the limit the oldest request is
// dropped, because a newer ACK or NACK supersedes an older one.
const maxOutbox = 256

// outbox queues the relay's own requests, such as the ACKs of local types. It never blocks. A control plane that does
// not read its requests therefore cannot block the relay from receiving responses.
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
