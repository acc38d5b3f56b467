package mesh

import (
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// EventKind says what happened.
type EventKind string

// The kinds of events, and the fields of Event that they fill besides Time, Instance and Origin.
const (
	// MeshStarting: the name and the addresses are taken. Message says which.
	MeshStarting EventKind = "mesh-starting"
	// MeshReady: every instance is ready for the first time. Took.
	MeshReady EventKind = "mesh-ready"
	// MeshStopping: the end begins. Message says why.
	MeshStopping EventKind = "mesh-stopping"
	// ControlPlaneUp, ControlPlaneDown: the embedded control plane serves, or serves no more. Message.
	ControlPlaneUp   EventKind = "control-plane-up"
	ControlPlaneDown EventKind = "control-plane-down"
	// Starting: the instance's processes are being started.
	Starting EventKind = "starting"
	// Ready: the instance is ready. Took counts from Starting, or from when it was last ready.
	Ready EventKind = "ready"
	// NotReady: an instance that was ready is so no more, or is late. Message gives the reasons.
	NotReady EventKind = "not-ready"
	// Exited: a process ended unasked. Exit; Message says what is done about it.
	Exited EventKind = "exited"
	// Failed: a process ended and is not started again. Exit; Message says why and what to do.
	Failed EventKind = "failed"
	// Restarting: a process is started again. Message.
	Restarting EventKind = "restarting"
	// ConfigProblem: a document of the configuration is refused, or will not do what its author expects. Problem.
	ConfigProblem EventKind = "config-problem"
	// ProblemSolved: a problem that was told of is gone. Problem.
	ProblemSolved EventKind = "problem-solved"
	// Log: a line of output. Line.
	Log EventKind = "log"
)

// Origin says which part of the mesh an event is about.
type Origin string

// The parts of a mesh.
const (
	OriginMesh         Origin = "mesh"
	OriginControlPlane Origin = "control-plane"
	// OriginWorkload is an instance's application.
	OriginWorkload Origin = "workload"
	// OriginSidecar is an instance's agent, with its Envoy.
	OriginSidecar Origin = "sidecar"
)

// Event is one thing that happened in the mesh.
type Event struct {
	Time time.Time `json:"time"`
	Kind EventKind `json:"kind"`
	// Instance is the workload instance; empty for the mesh itself and the control plane.
	Instance string          `json:"instance,omitempty"`
	Origin   Origin          `json:"origin"`
	Message  string          `json:"message,omitempty"`
	Line     string          `json:"line,omitempty"`
	Took     time.Duration   `json:"tookNanoseconds,omitempty"`
	Exit     *Exit           `json:"exit,omitempty"`
	Problem  *config.Problem `json:"problem,omitempty"`
	// Dropped is how many log lines were left out before this event because the subscriber was too slow.
	Dropped int `json:"dropped,omitempty"`
}

// maxPendingLines bounds how many log lines wait for a slow subscriber. Other events always wait: there are few.
const maxPendingLines = 4096

// Subscription is one listener's view of the stream of events.
type Subscription struct {
	stream *stream
	wake   chan struct{}

	mu      sync.Mutex
	pending []Event
	lines   int
	dropped int
	ended   bool
}

// stream hands each event to all subscriptions, without ever waiting for one.
type stream struct {
	mu     sync.Mutex
	subs   map[*Subscription]bool
	closed bool
}

func newStream() *stream { return &stream{subs: map[*Subscription]bool{}} }

func (s *stream) publish(e Event) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for sub := range s.subs {
		sub.add(e)
	}
}

func (s *stream) subscribe() *Subscription {
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

// close ends every subscription; what is pending can still be read.
func (s *stream) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for sub := range s.subs {
		sub.end()
	}
	s.subs = nil
}

func (s *Subscription) add(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Kind == Log {
		if s.lines >= maxPendingLines {
			s.dropped++
			return
		}
		s.lines++
	}
	e.Dropped, s.dropped = s.dropped, 0
	s.pending = append(s.pending, e)
	s.signal()
}

func (s *Subscription) end() {
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

// Next waits for the next events and gives them in order. It gives none, and ok false, once the mesh has ended (or the
// subscription was closed) and everything was handed out, and when done is closed first. One goroutine at a time may call it.
func (s *Subscription) Next(done <-chan struct{}) (events []Event, ok bool) {
	for {
		s.mu.Lock()
		events, s.pending, s.lines = s.pending, nil, 0
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
	s.end()
}
