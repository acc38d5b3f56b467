package mesh

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// execTarget describes how to run a program in the environment of an instance's application.
type execTarget struct {
	// PID is the PID of a process in the instance's network namespace. It is 0 if the instance uses the machine's own
	// network.
	PID int `json:"pid,omitempty"`
	// Capabilities lists the capabilities to which the program is limited. It applies only if PID is not 0.
	Capabilities []uintptr `json:"capabilities,omitempty"`
	// Env is added to the program's environment.
	Env []string `json:"env"`
}

// execTarget returns the target for `pilotfish exec`.
func (m *Mesh) execTarget(name string) (execTarget, error) {
	for _, r := range m.snapshotRunners() {
		if r.instance.Name != name {
			continue
		}
		env, err := m.instanceEnv(r.instance, r.attachment)
		in := execTarget{Env: env}
		if err == nil && m.placement.Captured() {
			process := r.agent
			if process == nil {
				process = r.app
			}
			in.PID, in.Capabilities = process.snapshot().PID, r.instance.Workload.Capabilities()
			if in.PID == 0 {
				err = fmt.Errorf("the %s of %s is not running: see `pilotfish status`", process.role, name)
			}
		}
		return in, err
	}
	return execTarget{}, fmt.Errorf("mesh %s has no workload instance %q: `pilotfish status` lists the instances", m.Name(), name)
}

// Exit statuses of `pilotfish exec` if it cannot run the program. They correspond to those of env(1) and of shells.
const (
	ExitCannotJoin = 125 // the workload does not exist, or this process cannot enter its namespaces
	ExitCannotRun  = 126 // the program exists, but cannot be run
	ExitNotFound   = 127 // the program does not exist
)

// ExecError is the reason why a program cannot be run in a workload's environment.
type ExecError struct {
	Status int // one of the exit statuses above
	Err    error
}

func (e *ExecError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *ExecError) Unwrap() error { return e.Err }

// noProgramError reports that a program does not exist.
type noProgramError struct{ error }

func (e noProgramError) Unwrap() error { return e.error }

// newExecError returns an ExecError for a program that cannot be run.
func newExecError(err error) error {
	var missing noProgramError
	if errors.As(err, &missing) || errors.Is(err, fs.ErrNotExist) {
		return &ExecError{ExitNotFound, err}
	}
	return &ExecError{ExitCannotRun, err}
}

// Exec replaces this process by a program that has the network, resolver and environment of an instance's application.
// It returns only on error, with an *ExecError.
func (c *Client) Exec(ctx context.Context, instance string, args, environ []string) error {
	var in execTarget
	if err := c.call(ctx, http.MethodGet, "/workloads/"+url.PathEscape(instance)+"/inside", &in); err != nil {
		return &ExecError{ExitCannotJoin, err}
	}
	env := append(append([]string(nil), environ...), in.Env...)
	if in.PID == 0 {
		return execProgram(args, env)
	}
	dir, err := os.Getwd()
	if err != nil {
		return &ExecError{ExitCannotJoin, fmt.Errorf("determining the working directory: %w", err)}
	}
	if inOtherUserNamespace(in.PID) {
		if _, err := locateProgram([]string{nsenter}, env); err != nil {
			return &ExecError{ExitCannotJoin, fmt.Errorf("entering the namespaces of workload %s: %w (install the package util-linux, which contains nsenter)", instance, err)}
		}
		path, err := locateProgram(args, env)
		if err != nil {
			return newExecError(err)
		}
		return execProgram(nsenterArgs(in.PID, dir, path, args[1:]), env)
	}
	if err := joinProcess(in, dir); err != nil {
		return &ExecError{ExitCannotJoin, fmt.Errorf("entering the namespaces of workload %s: %w", instance, err)}
	}
	return execProgram(args, env)
}

// inOtherUserNamespace reports whether process pid is in another user namespace than this process. It returns false if
// the namespaces cannot be read.
func inOtherUserNamespace(pid int) bool {
	theirs, err := os.Readlink(procFile(pid, "ns/user"))
	ours, ourErr := os.Readlink("/proc/self/ns/user")
	return err == nil && ourErr == nil && theirs != ours
}

const nsenter = "nsenter"

// enterScript is a shell script that changes the directory and runs a program there.
const enterScript = `cd -- "$1" || exit 125; shift; exec "$@"`

// nsenterArgs returns the command that runs a program in the user, network and mount namespaces of a process. This
// process cannot join a user namespace itself, because it has several threads.
func nsenterArgs(pid int, dir, path string, args []string) []string {
	return append([]string{
		nsenter, "--target", strconv.Itoa(pid), "--user", "--net", "--mount", "--preserve-credentials",
		"/bin/sh", "-c", enterScript, "sh", dir, path,
	}, args...)
}

// execProgram replaces this process by a program.
func execProgram(args, env []string) error {
	path, err := locateProgram(args, env)
	if err != nil {
		return newExecError(err)
	}
	return newExecError(replaceProcess(path, args, env))
}

// locateProgram returns the path of the program args[0]. The path contains a slash, so no later step searches PATH
// again.
func locateProgram(args, env []string) (string, error) {
	path, err := findProgram(command{Args: args, Env: env})
	if err == nil && !filepath.IsAbs(path) && strings.Contains(path, "/") {
		path = "./" + path
	}
	return path, err
}
