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

// Inside is what it takes to run a program as an instance's application is run.
type Inside struct {
	// PID is a process that is in the instance's network; 0 where that is the machine's own.
	PID int `json:"pid,omitempty"`
	// Env is added to the program's environment.
	Env []string `json:"env"`
}

// inside tells others of this user how to get to where an instance's application runs.
func (m *Mesh) inside(name string) (Inside, error) {
	for _, r := range m.snapshotRunners() {
		if r.instance.Name != name {
			continue
		}
		env, err := m.placeEnv(r.instance, r.attached)
		in := Inside{Env: env}
		if err == nil && m.placement.Captured() {
			in.PID = r.agent.snapshot().PID
			if in.PID == 0 {
				err = fmt.Errorf("the %s of %s does not run now: see `pilotfish status`", r.agent.what, name)
			}
		}
		return in, err
	}
	return Inside{}, fmt.Errorf("mesh %s has no workload instance %q: `pilotfish status` lists those it has", m.Name(), name)
}

// The exit statuses of a command that could not be run in a workload's place, as of env(1) and shells.
const (
	ExitNotInside = 125 // there is no such workload, or no way into it now
	ExitNotRun    = 126 // the program is there, and may not or cannot be run
	ExitNoProgram = 127 // the program is not there
)

// ExecError says why a program could not be run in a workload's place.
type ExecError struct {
	Status int // one of the exit statuses above
	Err    error
}

func (e *ExecError) Error() string { return e.Err.Error() }

// Unwrap gives what went wrong.
func (e *ExecError) Unwrap() error { return e.Err }

// noProgramError says that a program is not there.
type noProgramError struct{ error }

func (e noProgramError) Unwrap() error { return e.error }

// notRun is an ExecError of a program.
func notRun(err error) error {
	var missing noProgramError
	if errors.As(err, &missing) || errors.Is(err, fs.ErrNotExist) {
		return &ExecError{ExitNoProgram, err}
	}
	return &ExecError{ExitNotRun, err}
}

// Exec runs a program in the place of an instance's application, with its network, names and environment, in the place of
// this process. It returns only on an error, which is an ExecError.
func (c *Client) Exec(ctx context.Context, instance string, args, environ []string) error {
	var in Inside
	if err := c.call(ctx, http.MethodGet, "/workloads/"+url.PathEscape(instance)+"/inside", &in); err != nil {
		return &ExecError{ExitNotInside, err}
	}
	env := append(append([]string(nil), environ...), in.Env...)
	if in.PID == 0 {
		return execute(args, env)
	}
	dir, err := os.Getwd()
	if err != nil {
		return &ExecError{ExitNotInside, fmt.Errorf("finding the working directory: %w", err)}
	}
	if inOwnUserNamespace(in.PID) {
		if _, err := locateProgram([]string{nsenter}, env); err != nil {
			return &ExecError{ExitNotInside, fmt.Errorf("joining workload %s: %w (of the package util-linux)", instance, err)}
		}
		path, err := locateProgram(args, env)
		if err != nil {
			return notRun(err)
		}
		return execute(entering(in.PID, dir, path, args[1:]), env)
	}
	if err := joinProcess(in.PID, dir); err != nil {
		return &ExecError{ExitNotInside, fmt.Errorf("joining workload %s: %w", instance, err)}
	}
	return execute(args, env)
}

// inOwnUserNamespace says whether a process is in another user namespace than this one.
func inOwnUserNamespace(pid int) bool {
	theirs, err := os.Readlink(procFile(pid, "ns/user"))
	ours, ourErr := os.Readlink("/proc/self/ns/user")
	return err == nil && ourErr == nil && theirs != ours
}

const nsenter = "nsenter"

// enterScript is a shell's: it goes to a directory, and runs a program there.
const enterScript = `cd -- "$1" || exit 125; shift; exec "$@"`

// entering is the command that runs a program in the user namespace of a process, in its network and with its files. This
// process cannot go there itself: the kernel takes none that has several threads.
func entering(pid int, dir, path string, args []string) []string {
	return append([]string{
		nsenter, "--target", strconv.Itoa(pid), "--user", "--net", "--mount", "--preserve-credentials",
		"/bin/sh", "-c", enterScript, "sh", dir, path,
	}, args...)
}

// execute puts a program in the place of this process.
func execute(args, env []string) error {
	path, err := locateProgram(args, env)
	if err != nil {
		return notRun(err)
	}
	return notRun(replaceProcess(path, args, env))
}

// locateProgram is the path of a command's program, with a slash.
func locateProgram(args, env []string) (string, error) {
	path, err := findProgram(command{Args: args, Env: env})
	if err == nil && !filepath.IsAbs(path) && strings.Contains(path, "/") {
		path = "./" + path
	}
	return path, err
}
