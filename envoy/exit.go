package envoy

import (
	"fmt"
	"syscall"
	"time"
)

// Reason is why an Envoy ended.
type Reason string

const (
	// Exited: by itself, with Code.
	Exited Reason = "exited"
	// Signaled: by a signal that did not come from here.
	Signaled Reason = "signaled"
	// OOMKilled: by the kernel, for lack of memory.
	OOMKilled Reason = "oom-killed"
	// Stopped: because Stop was called.
	Stopped Reason = "stopped"
)

// Exit tells how an Envoy ended.
type Exit struct {
	Reason Reason
	// Code is the exit code when the process exited, -1 when a signal ended it.
	Code int
	// Signal is the signal that ended it, or 0.
	Signal syscall.Signal
	// CoreDumped is set when the signal made it leave a core file.
	CoreDumped bool
	// Forced is set when Stop had to use SIGKILL because the deadline passed.
	Forced bool
	// Remains is set when it had still not ended a while after SIGKILL: what the kernel says of its threads.
	Remains string
	// Evidence says by what an end for lack of memory is known.
	Evidence string
	// Ran is how long the process lived.
	Ran time.Duration
	// Tail is its last lines of output, the oldest first.
	Tail []string
}

// ExitCode is the process's exit code as a shell would tell it: 128 and the signal's number for a signal.
func (e Exit) ExitCode() int {
	if e.Signal != 0 {
		return 128 + int(e.Signal)
	}
	return e.Code
}

// String tells the end in one line, without the tail.
func (e Exit) String() string {
	switch {
	case e.Reason == OOMKilled:
		return fmt.Sprintf("killed by the kernel for lack of memory after %v (%s); give it a higher memory limit", e.ran(), e.Evidence)
	case e.Remains != "":
		return fmt.Sprintf("was given up: its end is not known %v after SIGKILL (%s)", killGrace, e.Remains)
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

// signalName gives the name that people search for, with what it means: "SIGSEGV (segmentation fault)".
func signalName(s syscall.Signal) string {
	if name, ok := signalNames[s]; ok {
		return fmt.Sprintf("%s (%s)", name, s)
	}
	return s.String()
}
