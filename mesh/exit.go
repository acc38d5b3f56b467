package mesh

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// Exit describes how a process ended.
type Exit struct {
	Time time.Time `json:"time"`
	// Code is the exit status. It is -1 if a signal ended the process or if it could not be started.
	Code int `json:"code"`
	// Signal is the name of the signal that ended the process.
	Signal string `json:"signal,omitempty"`
	// Problem is the reason why the process could not be started.
	Problem string `json:"problem,omitempty"`
	// Remedy describes how to fix the cause, if it is known.
	Remedy string `json:"remedy,omitempty"`
	// Tail contains the last lines of output.
	Tail []string `json:"tail,omitempty"`
	// Ran is how long the process ran.
	Ran time.Duration `json:"ranNanoseconds"`
}

// String returns a short description: "exited with status 1 after 20ms".
func (e Exit) String() string {
	after := " after " + roundDuration(e.Ran).String()
	switch {
	case e.Problem != "":
		return "could not be started: " + e.Problem
	case e.Signal != "":
		return "was terminated by " + e.Signal + after
	}
	return fmt.Sprintf("exited with status %d%s", e.Code, after)
}

// withRemedy returns the description of the exit, followed by the remedy if there is one.
func (e Exit) withRemedy() string {
	if e.Remedy == "" {
		return e.String()
	}
	return e.String() + " (" + e.Remedy + ")"
}

// IsClean reports whether the process exited with status 0.
func (e Exit) IsClean() bool { return e.Code == 0 && e.Signal == "" && e.Problem == "" }

func newExit(state *os.ProcessState, started time.Time, tail []string) Exit {
	e := Exit{Time: time.Now(), Code: state.ExitCode(), Ran: time.Since(started), Tail: tail}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = signalName(ws.Signal())
	}
	return e
}

func signalName(s syscall.Signal) string {
	switch s {
	case syscall.SIGKILL:
		return "SIGKILL (killed from outside, or out of memory)"
	case syscall.SIGTERM:
		return "SIGTERM"
	case syscall.SIGINT:
		return "SIGINT"
	case syscall.SIGSEGV:
		return "SIGSEGV (segmentation fault)"
	case syscall.SIGABRT:
		return "SIGABRT (aborted)"
	}
	return "signal " + s.String()
}

// roundDuration rounds to about three digits.
func roundDuration(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Millisecond)
}
