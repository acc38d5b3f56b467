package agent

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// States of the agent's Envoy when there is no process.
const (
	Waiting  State = "waiting"  // it is looked for, or it ended and is about to be started again
	Disabled State = "disabled" // the agent was told to run none
)

// EnvoyStatus tells of the agent's Envoy.
type EnvoyStatus struct {
	State State `json:"state"`
	// Since is when it got into that state.
	Since time.Time `json:"since,omitzero"`
	// Reason says why there is no process.
	Reason  string `json:"reason,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Epoch   int    `json:"epoch"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Restarts is how often it was started again.
	Restarts int `json:"restarts"`
	// LastEnd is how the last one ended that did so unasked.
	LastEnd *EndStatus `json:"lastEnd,omitempty"`
	// GivenUp are those that were killed, and that the kernel has not ended.
	GivenUp []GivenUpStatus `json:"givenUp,omitempty"`
	// Draining is set once the proxy was told to drain or to end.
	Draining bool         `json:"draining"`
	Drain    *DrainStatus `json:"drain,omitempty"`
}

// EndStatus tells how an Envoy ended.
type EndStatus struct {
	// Reason is exited, signaled, oom-killed, stopped or killed.
	Reason   string    `json:"reason"`
	ExitCode int       `json:"exitCode"`
	Text     string    `json:"text"`
	Time     time.Time `json:"time"`
	RanFor   string    `json:"ranFor"`
	// Tail is its last lines.
	Tail []string `json:"tail,omitempty"`
	// Report is the file with all that is known of the end.
	Report string `json:"report,omitempty"`
}

// GivenUpStatus tells of an Envoy that does not end.
type GivenUpStatus struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
	// Threads are the states of its threads, and where in the kernel they wait, when it was given up.
	Threads string `json:"threads"`
}

// DrainStatus tells what the end of the proxy waits for.
type DrainStatus struct {
	Requests    uint64    `json:"requests"`
	Connections uint64    `json:"connections"`
	Deadline    time.Time `json:"deadline"`
}

func newEndStatus(x envoy.Exit, at time.Time) *EndStatus {
	return &EndStatus{
		Reason: endReason(x), ExitCode: x.ExitCode(), Text: x.String(), Time: at,
		RanFor: x.Ran.Round(time.Millisecond).String(), Tail: x.Tail,
	}
}

// EnvoyStatus tells of the agent's Envoy at this moment.
func (a *Agent) EnvoyStatus() EnvoyStatus {
	s := EnvoyStatus{State: Disabled, Reason: "DISABLE_ENVOY", Draining: a.orders.drain.given()}
	if a.envoy != nil {
		a.envoy.describe(&s)
	}
	return s
}

func (e *envoyPart) describe(s *EnvoyStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.State, s.Reason, s.Since = Waiting, e.why, e.since
	s.Restarts, s.LastEnd = e.restarts, e.lastEnd
	if i := e.current; i != nil {
		s.State, s.Since = i.status()
		s.Reason = ""
		s.PID, s.Epoch, s.Path, s.Version = i.process.PID(), i.epoch, i.binary.Path, i.binary.Version.String()
	}
	for i := range e.givenUp {
		_, since := i.status()
		s.GivenUp = append(s.GivenUp, GivenUpStatus{i.process.PID(), since, i.process.Exit().Remains})
	}
	if d := e.progress.seen(); !d.deadline.IsZero() {
		s.Drain = &DrainStatus{Requests: d.load.requests, Connections: d.load.connections, Deadline: d.deadline}
	}
}
