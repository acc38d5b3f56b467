package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// supervised is one process of an instance, and its restarts.
type supervised struct {
	// what names the process in messages: "application", "sidecar".
	what     string
	instance string
	origin   Origin
	rule     RestartRule
	// command makes what to start, anew for each start.
	command func() (command, error)
	// remedy says what to do about an end of the process, where that can be told; nil: nothing.
	remedy func(Exit) string
	ledger *ledger
	events *stream
	// changed is told of every start and end.
	changed chan<- struct{}
	// kill, once closed, ends processes at once that are being stopped.
	kill <-chan struct{}

	again chan struct{} // a restart was asked for

	mu     sync.Mutex
	status ProcessStatus
	budget budget
}

func (s *supervised) snapshot() ProcessStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// run starts the process and starts it again as its rule says, until ctx ends; the process has ended when it returns.
func (s *supervised) run(ctx context.Context) {
	for ctx.Err() == nil {
		exit, asked := s.once(ctx)
		if ctx.Err() != nil {
			s.set(ProcessEnded, &exit)
			return
		}
		if !s.next(ctx, exit, asked) {
			return
		}
		s.mu.Lock()
		s.status.Restarts++
		s.mu.Unlock()
	}
}

// once runs the process to its end. asked says that it was ended to be started again.
func (s *supervised) once(ctx context.Context) (exit Exit, asked bool) {
	p, err := s.start()
	if err != nil {
		return Exit{Time: time.Now(), Code: -1, Problem: err.Error()}, false
	}
	defer s.ledger.remove(p.PID)
	s.mu.Lock()
	s.status.State, s.status.PID, s.status.Started = ProcessRunning, p.PID, p.Started
	s.mu.Unlock()
	s.notify()
	select {
	case <-p.done:
		return s.advised(p.exit), false
	case <-ctx.Done():
		return p.stop(s.kill), false
	case <-s.again:
		return s.stopSoon(p), true
	}
}

// advised is the end of the process with what to do about it.
func (s *supervised) advised(exit Exit) Exit {
	if s.remedy != nil && !exit.Clean() {
		exit.Remedy = s.remedy(exit)
	}
	return exit
}

// stopSoon stops a process that is started again, with a deadline of its own.
func (s *supervised) stopSoon(p *process) Exit {
	late := make(chan struct{})
	timer := time.AfterFunc(defaultStopTimeout, func() { close(late) })
	defer timer.Stop()
	return p.stop(late)
}

func (s *supervised) start() (*process, error) {
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
	if err := s.ledger.add(p.PID); err != nil {
		now := make(chan struct{})
		close(now)
		p.stop(now)
		return nil, err
	}
	return p, nil
}

// next decides what follows the process's end, waits as long as it has to, and says whether to start it again.
func (s *supervised) next(ctx context.Context, exit Exit, asked bool) bool {
	s.mu.Lock()
	s.status.unsteady = !asked
	s.mu.Unlock()
	if asked {
		s.set(ProcessWaiting, &exit)
		s.tell(Restarting, nil, s.what+" is restarted as asked")
		return true
	}
	if !s.wanted(exit) {
		state, kind := ProcessEnded, Exited
		message := fmt.Sprintf("%s %s; its restart rule is %q", s.what, exit.withRemedy(), s.rule)
		if !exit.Clean() {
			state, kind = ProcessFailed, Failed
		}
		s.set(state, &exit)
		s.tell(kind, &exit, message)
		return s.waitForAsk(ctx)
	}
	s.mu.Lock()
	pause, again := s.budget.fail(exit.Time, exit.Ran)
	s.mu.Unlock()
	if !again {
		s.set(ProcessFailed, &exit)
		s.tell(Failed, &exit, fmt.Sprintf("%s %s; it ended too often in a short time and is not started again: mend it, then `pilotfish restart %s`", s.what, exit.withRemedy(), s.instance))
		return s.waitForAsk(ctx)
	}
	s.set(ProcessBackOff, &exit)
	s.tell(Exited, &exit, fmt.Sprintf("%s %s; starting it again in %s", s.what, exit.withRemedy(), roundDuration(pause)))
	select {
	case <-time.After(pause):
	case <-s.again:
	case <-ctx.Done():
		return false
	}
	return true
}

// wanted says whether the restart rule has the process started again.
func (s *supervised) wanted(exit Exit) bool {
	switch s.rule {
	case RestartNever:
		return false
	case RestartOnFailure:
		return !exit.Clean()
	}
	return true
}

// waitForAsk waits until someone asks for a restart of what ended for good.
func (s *supervised) waitForAsk(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.again:
		s.mu.Lock()
		s.budget.forget()
		s.mu.Unlock()
		s.tell(Restarting, nil, s.what+" is started again as asked")
		return true
	}
}

// restart asks for a restart; asking twice is asking once.
func (s *supervised) restart() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

func (s *supervised) set(state ProcessState, exit *Exit) {
	s.mu.Lock()
	s.status.State, s.status.PID, s.status.LastExit = state, 0, exit
	s.mu.Unlock()
	s.notify()
}

func (s *supervised) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *supervised) tell(kind EventKind, exit *Exit, message string) {
	s.events.publish(Event{Kind: kind, Instance: s.instance, Origin: s.origin, Message: message, Exit: exit})
}

// How long an application without ports has to run before it counts as ready: nothing else tells that it works. After
// an end that nobody asked for it is believed less easily.
const (
	steadyAfter      = time.Second
	steadyAfterAnEnd = 5 * time.Second
)

// unproven is how much longer the process has to run before that alone tells that it works; 0 when it has.
func (s ProcessStatus) unproven(now time.Time) time.Duration {
	need := steadyAfter
	if s.unsteady {
		need = steadyAfterAnEnd
	}
	return max(0, need-now.Sub(s.Started))
}

// why says why the process keeps its instance from being ready; empty when it does not.
func (s ProcessStatus) why(what string) string {
	switch s.State {
	case ProcessRunning:
		return ""
	case ProcessWaiting, "":
		return what + " is not started yet"
	case ProcessBackOff:
		return fmt.Sprintf("%s %s, and will be started again", what, s.LastExit.withRemedy())
	}
	reason := fmt.Sprintf("%s %s, and is not started again", what, s.LastExit.withRemedy())
	if tail := s.LastExit.Tail; len(tail) > 0 {
		reason += ": " + strings.TrimSpace(tail[len(tail)-1])
	}
	return reason
}
