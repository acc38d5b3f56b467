package xdsproxy

import (
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
	"slices"
	"time"
)

// truncate returns at most the first wire.MaxString bytes of text.
func truncate(text string) string { return text[:min(len(text), wire.MaxString)] }

// maxEvents and maxNacks limit the stored events. NACKs are also in a list of their own, because frequent endpoint
// updates displace older events within seconds.
const (
	maxEvents = 256
	maxNacks  = 64
)

// Event is a message, or a change of a connection, between Envoy, the relay and the control plane.
type Event struct {
	Time time.Time `json:"time"`
	// Kind is one of the constants below.
	Kind    string `json:"kind"`
	TypeURL string `json:"typeUrl,omitempty"`
	Version string `json:"version,omitempty"`
	Nonce   string `json:"nonce,omitempty"`
	// Resources is the number of resources in a response, or of names that a request adds. Removed is the number of
	// resources or names that it removes.
	Resources int `json:"resources,omitempty"`
	Removed   int `json:"removed,omitempty"`
	Bytes     int `json:"bytes,omitempty"`
	// Names lists the resources that Envoy rejected with this NACK.
	Names  []string `json:"names,omitempty"`
	Reason string   `json:"reason,omitempty"`
	// Address is the address of the control plane. It is set in connected and disconnected events. Process is the PID
	// of Envoy. It is set in envoy and envoy-gone events.
	Address string `json:"address,omitempty"`
	Process int    `json:"pid,omitempty"`
}

// Kinds of events.
const (
	EventConnected    = "connected"    // the relay connected to a control plane
	EventDisconnected = "disconnected" // the connection to the control plane failed
	EventEnvoy        = "envoy"        // an Envoy started a stream
	EventEnvoyGone    = "envoy-gone"   // Envoy's stream ended
	EventSubscribe    = "subscribe"    // Envoy changed its subscription
	EventResponse     = "response"     // the relay sent a response to Envoy
	EventAck          = "ack"          // Envoy accepted a response
	EventNack         = "nack"         // Envoy rejected a response
)

// History contains the latest events, oldest first. Nacks contains the latest NACKs, including those that are no longer
// in Events.
type History struct {
	Events []Event `json:"events"`
	Nacks  []Event `json:"nacks"`
}

// ring stores the latest events, up to its capacity.
type ring struct {
	capacity int
	next     int
	events   []Event
}

func (r *ring) add(e Event) {
	if len(r.events) < r.capacity {
		r.events = append(r.events, e)
		return
	}
	r.events[r.next] = e
	r.next = (r.next + 1) % r.capacity
}

// all returns the stored events, oldest first.
func (r *ring) all() []Event {
	return slices.Concat(r.events[r.next:], r.events[:r.next])
}

// addEvent stores an event. The caller holds mu.
func (l *statusTracker) addEvent(e Event) {
	e.Time, e.Version, e.Nonce = l.now(), truncate(e.Version), truncate(e.Nonce)
	l.events.add(e)
	if e.Kind == EventNack {
		l.nacks.add(e)
	}
}

func (l *statusTracker) history() History {
	l.mu.Lock()
	defer l.mu.Unlock()
	return History{Events: l.events.all(), Nacks: l.nacks.all()}
}

// History returns the latest events.
func (r *Relay) History() History { return r.tracker.history() }
