package mesh

import (
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// EventKind is the type of an event.
type EventKind string

// The kinds of events. The last sentence of each comment lists the fields of Event that are set in addition to Time,
// Instance and Origin: "Took." means that Event.Took is set.
const (
	// MeshStarting: the mesh has claimed its name and its addresses. Message (the addresses).
	MeshStarting EventKind = "mesh-starting"
	// MeshReady: every instance is ready for the first time. Took.
	MeshReady EventKind = "mesh-ready"
	// MeshStopping: the mesh has begun to stop. Message (the reason).
	MeshStopping EventKind = "mesh-stopping"
	// ControlPlaneUp, ControlPlaneDown: the embedded control plane serves clients, or has stopped. Message.
	ControlPlaneUp   EventKind = "control-plane-up"
	ControlPlaneDown EventKind = "control-plane-down"
	// Starting: the mesh starts the instance's processes. Message (its address).
	Starting EventKind = "starting"
	// Ready: the instance is ready. Took (since Starting, or since it was last ready).
	Ready EventKind = "ready"
	// NotReady: a ready instance is no longer ready, or exceeds its startup timeout. Message (the reasons).
	NotReady EventKind = "not-ready"
	// Exited: a process ended unexpectedly. Exit; Message (what happens next).
	Exited EventKind = "exited"
	// Failed: a process ended and will not be restarted. Exit; Message (the reason and the remedy).
	Failed EventKind = "failed"
	// Restarting: a process is restarted because a user requested it. Message.
	Restarting EventKind = "restarting"
	// ConfigProblem: a document has an error or a warning. Problem.
	ConfigProblem EventKind = "config-problem"
	// ProblemSolved: a reported problem no longer exists. Problem.
	ProblemSolved EventKind = "problem-solved"
	// Log: a process wrote a line of output. Line.
	Log EventKind = "log"
)

// Origin is the component of the mesh to which an event belongs.
type Origin string

// The components of a mesh.
const (
	OriginMesh         Origin = "mesh"
	OriginControlPlane Origin = "control-plane"
	// OriginWorkload is an instance's application.
	OriginWorkload Origin = "workload"
	// OriginSidecar is an instance's agent with its Envoy.
	OriginSidecar Origin = "sidecar"
)

// Event is one event of the mesh.
type Event struct {
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// Instance is the workload instance. It is empty if the event is about the mesh or the control plane.
	Instance string          `json:"instance,omitempty"`
	Origin   Origin          `json:"origin"`
	Message  string          `json:"message,omitempty"`
	Line     string          `json:"line,omitempty"`
	Took     time.Duration   `json:"tookNanoseconds,omitempty"`
	Exit     *Exit           `json:"exit,omitempty"`
	Problem  *config.Problem `json:"problem,omitempty"`
	// Dropped is the number of log lines that were dropped before this event, because the subscriber was too slow.
	Dropped int `json:"dropped,omitempty"`
}

// maxPendingLines is the maximum number of queued log lines per subscription. Events of other kinds are rare, so they
// are never dropped.
const maxPendingLines = 4096

// Subscription is the event queue of one subscriber.
type Subscription struct {
	stream *eventStream
	wake   chan struct{}

	mu           sync.Mutex
	pending      []Event
	pendingLines int
	dropped      int
	ended        bool
}

// eventStream passes each event to all subscriptions. A slow subscriber never blocks it.
type eventStream struct {
	mu     sync.Mutex
	subs   map[*Subscription]bool
	closed bool
}

func newEventStream() *eventStream { return &eventStream{subs: map[*Subscription]bool{}} }

func (s *eventStream) publish(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.subs {
		sub.add(e)
	}
}

func (s *eventStream) subscribe() *Subscription {
	sub := &Subscription{stream: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		sub.ended = true
		return sub
	}
	s.subs[sub] = true
	return sub
}

// close ends every subscription. Queued events can still be read.
func (s *eventStream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for sub := range s.subs {
		sub.markEnded()
	}
	s.subs = nil
}

func (s *Subscription) add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Kind == Log {
		if s.pendingLines >= maxPendingLines {
			s.dropped++
			return
		}
		s.pendingLines++
	}
	e.Dropped, s.dropped = s.dropped, 0
	s.pending = append(s.pending, e)
	s.signal()
}

func (s *Subscription) markEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for events and returns them in order. It returns false for ok when done is closed, or when the mesh or the
// subscription has ended and the queue is empty. Only one goroutine at a time may call it.
func (s *Subscription) Next(done <-chan struct{}) (events []Event, ok bool) {
	for {
		s.mu.Lock()
		events, s.pending, s.pendingLines = s.pending, nil, 0
		ended := s.ended
		s.mu.Unlock()
		if len(events) > 0 {
			return events, true
		}
		if ended {
			return nil, false
		}
		select {
		case <-s.wake:
		case <-done:
			return nil, false
		}
	}
}

// Close ends the subscription.
func (s *Subscription) Close() {
	s.stream.mu.Lock()
	delete(s.stream.subs, s)
	s.stream.mu.Unlock()
	s.markEnded()
}
