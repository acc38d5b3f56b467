package command

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

// systemdVariables are the variables with which a service finds systemd's notification socket. The application's
// environment does not contain them, because the agent sends the notifications.
var systemdVariables = []string{"NOTIFY_SOCKET=", "WATCHDOG_USEC=", "WATCHDOG_PID="}

// application is the program that the command `run` runs together with the proxy.
type application struct {
	cmd         *exec.Cmd
	sharesGroup bool // whether the program is in the agent's process group
	done        chan struct{}
}

// findApplication looks up the program name in PATH and returns its path.
func findApplication(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot):
		return path, nil
	case errors.Is(err, fs.ErrPermission):
		return "", exitCodeError{fmt.Errorf("the application cannot be executed: %w", err), exitCannotRun}
	}
	return "", exitCodeError{fmt.Errorf("the application was not found: %w", err), exitNoProgram}
}

// startApplication starts the program with the agent's stdin, stdout and stderr. The kernel sends SIGTERM to the
// program if the agent dies. If shared is true, the program stays in the agent's process group, and both receive the
// signals of terminal keys such as Ctrl-C.
func startApplication(path string, argv []string, shared bool) (*application, error) {
	a := &application{sharesGroup: shared, done: make(chan struct{})}
	a.cmd = &exec.Cmd{
		Path: path, Args: argv, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: slices.DeleteFunc(os.Environ(), func(v string) bool {
			return slices.ContainsFunc(systemdVariables, func(name string) bool { return strings.HasPrefix(v, name) })
		}),
	}
	started := make(chan error)
	go a.startAndWait(started)
	if err := <-started; err != nil {
		return nil, exitCodeError{fmt.Errorf("starting the application: %w", err), exitCannotRun}
	}
	return a, nil
}

// startAndWait starts the program and waits for its exit. It does both on one locked OS thread, because the kernel also
// sends the parent-death signal when the thread that started the program exits.
func (a *application) startAndWait(started chan<- error) {
	release := setPdeathsig(a.cmd, a.sharesGroup)
	defer release()
	err := a.cmd.Start()
	started <- err
	if err == nil {
		_ = a.cmd.Wait() // sets ProcessState, which exitCode reads
		close(a.done)
	}
}

func (a *application) pid() int { return a.cmd.Process.Pid }

// signal sends a signal to the program, if it still runs.
func (a *application) signal(s os.Signal) { _ = a.cmd.Process.Signal(s) }

// kill sends SIGKILL to the program, and to the rest of its process group unless the agent is in that group.
func (a *application) kill() {
	select {
	case <-a.done:
		return
	default:
	}
	if !a.sharesGroup {
		killApplicationGroup(a.pid())
	}
	_ = a.cmd.Process.Kill()
}

// exitCode returns the program's exit code, or 128 plus the number of the signal that killed it, as a shell does.
func (a *application) exitCode() int {
	status, ok := a.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return a.cmd.ProcessState.ExitCode()
}

// exitError returns an error with the program's exit code, or nil if that is 0.
func (a *application) exitError() error {
	if a.exitCode() == 0 {
		return nil
	}
	return exitCodeError{fmt.Errorf("the application exited: %s", a.cmd.ProcessState), a.exitCode()}
}
