package agent

import (
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// States of the agent's Envoy when no process runs.
const (
	stateWaiting  envoyState = "waiting"  // the agent searches for the Envoy binary, or waits before a restart
	stateDisabled envoyState = "disabled" // the agent runs no Envoy
)

// envoyStatus is the status of the agent's Envoy.
type envoyStatus struct {
	State envoyState `json:"state"`
	// Since is the time of the last state change.
	Since time.Time `json:"since,omitzero"`
	// Reason is the reason why no process runs.
	Reason  string `json:"reason,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Epoch   int    `json:"epoch"`
	Path    string `json:"path,omitempty"`
	Version string `json:"version,omitempty"`
	// Restarts is the number of times that the agent has restarted Envoy after an exit.
	Restarts int `json:"restarts"`
	// LastEnd describes the last unexpected or unclean exit.
	LastEnd *endStatus `json:"lastEnd,omitempty"`
	// GivenUp lists the Envoys that the kernel has not ended after SIGKILL.
	GivenUp []givenUpStatus `json:"givenUp,omitempty"`
	// Draining is true after a drain or stop request.
	Draining bool         `json:"draining"`
	Drain    *drainStatus `json:"drain,omitempty"`
}

// endStatus describes an exit of Envoy.
type endStatus struct {
	// Reason is exited, signaled, oom-killed, stopped or killed.
	Reason   string    `json:"reason"`
	ExitCode int       `json:"exitCode"`
	Text     string    `json:"text"`
	Time     time.Time `json:"time"`
	RanFor   string    `json:"ranFor"`
	// Tail contains the last lines of Envoy's output.
	Tail []string `json:"tail,omitempty"`
	// Report is the path of the crash report.
	Report string `json:"report,omitempty"`
}

// givenUpStatus describes an Envoy that the kernel has not ended after SIGKILL.
type givenUpStatus struct {
	PID   int       `json:"pid"`
	Since time.Time `json:"since"`
	// Threads lists the state of each thread and the kernel function in which it waited. The agent read them when it
	// stopped waiting for this Envoy.
	Threads string `json:"threads"`
}

// drainStatus describes the traffic for which the shutdown waits.
type drainStatus struct {
	Requests    uint64    `json:"requests"`
	Connections uint64    `json:"connections"`
	Deadline    time.Time `json:"deadline"`
}

func newEndStatus(x envoy.Exit, at time.Time) *endStatus {
	return &endStatus{
		Reason: endReason(x), ExitCode: x.ExitCode(), Text: x.String(), Time: at,
		RanFor: x.Ran.Round(time.Millisecond).String(), Tail: x.Tail,
	}
}

// envoyStatus returns the current status of the agent's Envoy.
func (a *Agent) envoyStatus() envoyStatus {
	s := envoyStatus{State: stateDisabled, Reason: "DISABLE_ENVOY", Draining: a.requests.drain.isSet()}
	if a.envoy != nil {
		a.envoy.fillStatus(&s)
	}
	return s
}

func (e *envoySupervisor) fillStatus(s *envoyStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.State, s.Reason, s.Since = stateWaiting, e.noInstanceReason, e.since
	s.Restarts, s.LastEnd = e.restarts, e.lastEnd
	if i := e.current; i != nil {
		s.State, s.Since = i.status()
		s.Reason = ""
		s.PID, s.Epoch, s.Path, s.Version = i.process.PID(), i.epoch, i.binary().Path, versionText(i.binary())
	}
	for i := range e.givenUp {
		_, since := i.status()
		s.GivenUp = append(s.GivenUp, givenUpStatus{i.process.PID(), since, i.process.Exit().HungThreads})
	}
	if d := e.drainTracker.snapshot(); !d.deadline.IsZero() {
		s.Drain = &drainStatus{Requests: d.traffic.requests, Connections: d.traffic.connections, Deadline: d.deadline}
	}
}
