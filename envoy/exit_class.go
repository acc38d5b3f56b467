package envoy

import (
	"syscall"
	"time"
)

// codeTerminated is the exit code that shells report after SIGTERM. Some programs that handle SIGTERM exit with it too.
const codeTerminated = 128 + int(syscall.SIGTERM)

// statusUnknown is the status of a process for which waiting failed. No real process has this status.
const statusUnknown = syscall.WaitStatus(0xffff)

// classifyExit determines why the process ended. It uses the wait status, the signals that this package sent, and the
// kernel's OOM kill count.
func (p *Process) classifyExit(status syscall.WaitStatus) Exit {
	e := Exit{Reason: Exited, Code: -1, Ran: time.Since(p.started)}
	if status == statusUnknown {
		return e
	}
	p.mu.Lock()
	termed, killed := p.sentSIGTERM, p.sentSIGKILL
	p.mu.Unlock()
	if status.Signaled() {
		e.Signal, e.CoreDumped = status.Signal(), status.CoreDump()
		e.Forced = killed && e.Signal == syscall.SIGKILL
		e.Reason = Signaled
		switch {
		case e.Forced, termed && e.Signal == syscall.SIGTERM:
			e.Reason = Stopped
		case e.Signal == syscall.SIGKILL:
			if e.Evidence = p.oom.evidence(); e.Evidence != "" {
				e.Reason = OOMKilled
			}
		}
		return e
	}
	e.Code = status.ExitStatus()
	if termed && (e.Code == 0 || e.Code == codeTerminated) {
		e.Reason = Stopped
	}
	return e
}
