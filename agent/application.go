package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
)

// serviceVariables tell a service about its service manager. They are the agent's, which speaks to it, and not the
// application's.
var serviceVariables = []string{"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="}

// application is the program that `run` runs beside the proxy.
type application struct {
	cmd    *exec.Cmd
	shared bool // with the agent's process group
	done   chan struct{}
}

// findApplication says what to run for the name of a program, by PATH as a shell does.
func findApplication(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, fs.ErrPermission):
		return "", codedError{fmt.Errorf("the application cannot be run: %w", err), exitCannotRun}
	}
	return "", codedError{fmt.Errorf("the application was not found: %w", err), exitNoProgram}
}

// startApplication starts the program with the agent's own input, output and errors. The kernel tells it to end should the
// agent be killed. With shared it stays in the agent's process group: a terminal's keys then reach both.
func startApplication(path string, argv []string, shared bool) (*application, error) {
	a := &application{shared: shared, done: make(chan struct{})}
	a.cmd = &exec.Cmd{
		Path: path, Args: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: slices.DeleteFunc(os.Environ(), func(v string) bool {
			return slices.ContainsFunc(serviceVariables, func(name string) bool { return strings.HasPrefix(v, name) })
		}),
	}
	started := make(chan error)
	go a.own(started)
	if err := <-started; err != nil {
		return nil, codedError{fmt.Errorf("starting the application: %w", err), exitCannotRun}
	}
	return a, nil
}

// own starts the program and waits for its end, on one thread: the kernel takes the end of the thread that started the
// program for the end of its owner.
func (a *application) own(started chan<- error) {
	release := ownChild(a.cmd, a.shared)
	defer release()
	err := a.cmd.Start()
	started <- err
	if err == nil {
		_ = a.cmd.Wait() // what came of it is in ProcessState
		close(a.done)
	}
}

func (a *application) pid() int { return a.cmd.Process.Pid }

// signal passes a signal on. A program that has ended gets none.
func (a *application) signal(s os.Signal) { _ = a.cmd.Process.Signal(s) }

// kill ends the program, and what it started in its own process group.
func (a *application) kill() {
	select {
	case <-a.done:
		return
	default:
	}
	if !a.shared {
		killApplicationGroup(a.pid())
	}
	_ = a.cmd.Process.Kill()
}

// code is the exit code of a program that ended, as a shell gives it.
func (a *application) code() int {
	status, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return a.cmd.ProcessState.ExitCode()
}

// err says how the program ended, with its exit code; nil when that was 0.
func (a *application) err() error {
	if a.code() == 0 {
		return nil
	}
	return codedError{fmt.Errorf("the application ended: %s", a.cmd.ProcessState), a.code()}
}
