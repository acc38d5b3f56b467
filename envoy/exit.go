package envoy

import (
	"fmt"
	"syscall"
	"time"
)

// Reason is why an Envoy ended.
type Reason string

const (
	// Exited: Envoy exited by itself, with exit code Code.
	Exited Reason = "exited"
	// Signaled: Envoy was ended by a signal that Process did not send.
	Signaled Reason = "signaled"
	// OOMKilled: the kernel's OOM killer ended Envoy.
	OOMKilled Reason = "oom-killed"
	// Stopped: Envoy ended because of Stop or MarkReplaced.
	Stopped Reason = "stopped"
)

// Exit describes how an Envoy ended.
type Exit struct {
	Reason Reason
	// Code is the exit code, or -1 if a signal ended the process.
	Code int
	// Signal is the signal that ended the process, or 0.
	Signal syscall.Signal
	// CoreDumped reports whether the kernel wrote a core file.
	CoreDumped bool
	// Forced reports whether Stop ended Envoy with SIGKILL because its deadline had passed.
	Forced bool
	// HungThreads describes Envoy's threads if the kernel did not end the process within killGrace after SIGKILL.
	// Otherwise it is empty.
	HungThreads string
	// Evidence describes the increase of the kernel's OOM kill count, if Reason is OOMKilled because of it.
	Evidence string
	// Ran is how long Envoy ran.
	Ran time.Duration
	// Tail contains the last lines of Envoy's output, oldest first.
	Tail []string
}

// ExitCode returns the exit code that a shell would report. For a signal, it is 128 plus the signal's number.
func (e Exit) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// String describes in one line how Envoy ended. It omits Tail.
func (e Exit) String() string {
	switch {
	case e.Reason == OOMKilled:
		return fmt.Sprintf("killed by the kernel for lack of memory after %v (%s); set a higher memory limit", e.ran(), e.Evidence)
	case e.HungThreads != "":
		return fmt.Sprintf("has not ended %v after SIGKILL; no longer waiting for it (%s)", killGrace, e.HungThreads)
	case e.Reason == Stopped && e.Forced:
		return "stopped with SIGKILL: it had not ended by the deadline after SIGTERM"
	case e.Reason == Stopped:
		return "stopped"
	case e.Reason == Signaled:
		s := fmt.Sprintf("ended by %s after %v", signalName(e.Signal), e.ran())
		if e.CoreDumped {
			s += ", core dumped"
		}
		return s
	}
	return fmt.Sprintf("exited with code %d after %v", e.Code, e.ran())
}

func (e Exit) ran() time.Duration { return e.Ran.Round(time.Millisecond) }

var signalNames = map[syscall.Signal]string{
	syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGHUP: "SIGHUP",
	syscall.SIGILL: "SIGILL", syscall.SIGINT: "SIGINT", syscall.SIGKILL: "SIGKILL", syscall.SIGQUIT: "SIGQUIT",
	syscall.SIGSEGV: "SIGSEGV", syscall.SIGTERM: "SIGTERM",
}

// signalName returns the name of a signal and its meaning: "SIGSEGV (segmentation fault)".
func signalName(s syscall.Signal) string {
	if name, ok := signalNames[s]; ok {
		return fmt.Sprintf("%s (%s)", name, s)
	}
	return s.String()
}
