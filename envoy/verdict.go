package envoy

import (
	"syscall"
	"time"
)

// codeTerminated is what shells and programs that catch SIGTERM exit with.
const codeTerminated = 128 + int(syscall.SIGTERM)

// statusUnknown is that of a process that nobody here could wait for; no process has it.
const statusUnknown = syscall.WaitStatus(0xffff)

// verdict says why the process ended, from its wait status, from what was sent to it, and from the kernel's count of
// processes killed for lack of memory.
func (p *Process) verdict(status syscall.WaitStatus) Exit {
	e := Exit{Reason: Exited, Code: -1, Ran: time.Since(p.started)}
	if status == statusUnknown {
		return e
	}
	p.mu.Lock()
	termed, killed := p.termed, p.killed
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
