package xdsproxy

import (
	"slices"
	"time"
)

// shortened is the beginning of what is remembered to be looked at.
func shortened(text string) string { return text[:min(len(text), maxString)] }

// mostEvents and mostNacks bound what is remembered. Rejections have a list of their own, since updates of endpoints would
// drive them out of the other within seconds.
const (
	mostEvents = 256
	mostNacks  = 64
)

// Event is something that happened between Envoy, relay and control plane.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is one of the constants below.
	Kind    string `json:"kind"`
	TypeURL string `json:"typeUrl,omitempty"`
	Version string `json:"version,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	// Resources and Removed are how many a response carried, or how many names a request adds and takes away.
	Resources int `json:"resources,omitempty"`
	Removed   int `json:"removed,omitempty"`
	Bytes     int `json:"bytes,omitempty"`
	// Names are the resources that Envoy rejected.
	Names  []string `json:"names,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Address is the control plane's, and Process the id of the Envoy, where they change.
	Address string `json:"address,omitempty"`
	Process int    `json:"pid,omitempty"`
}

// The kinds of events.
const (
	EventConnected    = "connected"    // a control plane answers
	EventDisconnected = "disconnected" // it does not, or no more
	EventEnvoy        = "envoy"        // an Envoy began a stream
	EventEnvoyGone    = "envoy-gone"   // and ended it
	EventSubscribe    = "subscribe"    // Envoy asks for something else than before
	EventResponse     = "response"     // Envoy was sent something
	EventAck          = "ack"          // which it accepted
	EventNack         = "nack"         // or rejected
)

// History is what happened last, the oldest first. Nacks are also those that Events does not have any more.
type History struct {
	Events []Event `json:"events"`
	Nacks  []Event `json:"nacks"`
}

// ring keeps the last so many events.
type ring struct {
	most   int
	next   int
	events []Event
}

func (r *ring) add(e Event) {
	if len(r.events) < r.most {
		r.events = append(r.events, e)
		return
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % r.most
}

func (r *ring) all() []Event {
	return slices.Concat(r.events[r.next:], r.events[:r.next])
}

// note remembers an event; the caller holds the lock.
func (l *ledger) note(e Event) {
	e.Time, e.Version, e.Nonce = l.now(), shortened(e.Version), shortened(e.Nonce)
	l.events.add(e)
	if e.Kind == EventNack {
		l.nacks.add(e)
	}
}

func (l *ledger) history() History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return History{Events: l.events.all(), Nacks: l.nacks.all()}
}

// History tells what happened last.
func (r *Relay) History() History { return r.book.history() }
