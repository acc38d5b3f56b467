package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/crashbudget"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// supervisedProcess runs one process of an instance and restarts it.
type supervisedProcess struct {
	// role is the name of the process in messages: "application", "sidecar".
	role     string
	instance string
	origin   Origin
	rule     topology.RestartRule
	// command returns the command for the next start.
	command func() (command, error)
	// remedy returns the remedy for an exit, or "" if there is none. It may be nil.
	remedy func(Exit) string
	record *runRecord
	events *eventStream
	// changed receives a value after every start and exit.
	changed chan<- struct{}
	// kill is closed when stopping processes must be killed immediately.
	kill <-chan struct{}

	restarts chan struct{} // requests for a restart

	mu     sync.Mutex
	status ProcessStatus
	budget *crashbudget.Budget
}

func (s *supervisedProcess) snapshot() ProcessStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// run runs the process until ctx ends. It restarts the process according to its rule. When run returns, the process has
// ended.
func (s *supervisedProcess) run(ctx context.Context) {
	for ctx.Err() == nil {
		exit, requested := s.runOnce(ctx)
		if ctx.Err() != nil {
			s.set(ProcessEnded, &exit)
			return
		}
		if !s.handleExit(ctx, exit, requested) {
			return
		}
		s.mu.Lock()
		s.status.Restarts++
		s.mu.Unlock()
	}
}

// runOnce runs the process until it ends. requested reports whether it was stopped for a restart.
func (s *supervisedProcess) runOnce(ctx context.Context) (exit Exit, requested bool) {
	p, err := s.start()
	if err != nil {
		return Exit{Time: time.Now(), Code: -1, Problem: err.Error()}, false
	}
	defer s.record.remove(p.PID)
	s.mu.Lock()
	s.status.State, s.status.PID, s.status.Started = ProcessRunning, p.PID, p.Started
	s.mu.Unlock()
	s.notify()
	select {
	case <-p.done:
		return s.addRemedy(p.exit), false
	case <-ctx.Done():
		return p.stop(s.kill), false
	case <-s.restarts:
		return s.stopForRestart(p), true
	}
}

// addRemedy returns the exit with its remedy.
func (s *supervisedProcess) addRemedy(exit Exit) Exit {
	if s.remedy != nil && !exit.IsClean() {
		exit.Remedy = s.remedy(exit)
	}
	return exit
}

// stopForRestart stops a process for a restart. It kills the process after defaultStopTimeout.
func (s *supervisedProcess) stopForRestart(p *process) Exit {
	late := make(chan struct{})
	timer := time.AfterFunc(defaultStopTimeout, func() { close(late) })
	defer timer.Stop()
	return p.stop(late)
}

func (s *supervisedProcess) start() (*process, error) {
	c, err := s.command()
	if err != nil {
		return nil, err
	}
	c.Output = func(line string) {
		s.events.publish(Event{Kind: Log, Instance: s.instance, Origin: s.origin, Line: line})
	}
	p, err := startProcess(c)
	if err != nil {
		return nil, err
	}
	if err := s.record.add(p.PID); err != nil {
		now := make(chan struct{})
		close(now)
		p.stop(now)
		return nil, err
	}
	return p, nil
}

// handleExit determines what follows the process's exit. It waits for the backoff, and reports whether to restart the
// process.
func (s *supervisedProcess) handleExit(ctx context.Context, exit Exit, requested bool) bool {
	s.mu.Lock()
	s.status.unsteady = !requested
	s.mu.Unlock()
	if requested {
		s.set(ProcessWaiting, &exit)
		s.publish(Restarting, nil, s.role+" is restarted on request")
		return true
	}
	if !s.shouldRestart(exit) {
		state, kind := ProcessEnded, Exited
		message := fmt.Sprintf("%s %s; its restart rule is %q", s.role, exit.withRemedy(), s.rule)
		if !exit.IsClean() {
			state, kind = ProcessFailed, Failed
		}
		s.set(state, &exit)
		s.publish(kind, &exit, message)
		return s.waitForRestart(ctx)
	}
	s.mu.Lock()
	pause, again := s.budget.RecordFailure(exit.Time)
	s.mu.Unlock()
	if !again {
		s.set(ProcessFailed, &exit)
		s.publish(Failed, &exit, fmt.Sprintf("%s %s; it exited too often in a short time, so pilotfish does not restart it: fix the cause, then run `pilotfish restart %s`", s.role, exit.withRemedy(), s.instance))
		return s.waitForRestart(ctx)
	}
	s.set(ProcessBackOff, &exit)
	s.publish(Exited, &exit, fmt.Sprintf("%s %s; pilotfish restarts it in %s", s.role, exit.withRemedy(), roundDuration(pause)))
	select {
	case <-time.After(pause):
	case <-s.restarts:
	case <-ctx.Done():
		return false
	}
	return true
}

// shouldRestart reports whether the restart rule requires a restart.
func (s *supervisedProcess) shouldRestart(exit Exit) bool {
	switch s.rule {
	case topology.RestartNever:
		return false
	case topology.RestartOnFailure:
		return !exit.IsClean()
	}
	return true
}

// waitForRestart waits until a user requests a restart. It is called for a process that is not restarted
// automatically. It returns false if ctx ends before.
func (s *supervisedProcess) waitForRestart(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.restarts:
		s.mu.Lock()
		s.budget.Reset()
		s.mu.Unlock()
		s.publish(Restarting, nil, s.role+" is restarted on request")
		return true
	}
}

// restart requests a restart. Concurrent requests are merged.
func (s *supervisedProcess) restart() {
	select {
	case s.restarts <- struct{}{}:
	default:
	}
}

func (s *supervisedProcess) set(state ProcessState, exit *Exit) {
	s.mu.Lock()
	s.status.State, s.status.PID, s.status.LastExit = state, 0, exit
	s.mu.Unlock()
	s.notify()
}

func (s *supervisedProcess) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *supervisedProcess) publish(kind EventKind, exit *Exit, message string) {
	s.events.publish(Event{Kind: kind, Instance: s.instance, Origin: s.origin, Message: message, Exit: exit})
}

// How long an application without ports must run before it counts as ready, because no probe can check it. After an
// unexpected exit, it must run longer to count as ready.
const (
	steadyAfter     = time.Second
	steadyAfterExit = 5 * time.Second
)

// unsteadyFor returns how much longer the process must run to count as ready without a probe, or 0 if it has run long
// enough.
func (s ProcessStatus) unsteadyFor(now time.Time) time.Duration {
	need := steadyAfter
	if s.unsteady {
		need = steadyAfterExit
	}
	return max(0, need-now.Sub(s.Started))
}

// notReadyReason returns the reason for which the process prevents its instance from being ready, or "" if it does
// not.
func (s ProcessStatus) notReadyReason(what string) string {
	switch s.State {
	case ProcessRunning:
		return ""
	case ProcessWaiting, "":
		return what + " has not been started yet"
	case ProcessBackOff:
		return fmt.Sprintf("%s %s, and pilotfish will restart it", what, s.LastExit.withRemedy())
	}
	reason := fmt.Sprintf("%s %s, and pilotfish does not restart it", what, s.LastExit.withRemedy())
	if tail := s.LastExit.Tail; len(tail) > 0 {
		reason += ": " + strings.TrimSpace(tail[len(tail)-1])
	}
	return reason
}
