package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/cgroup"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

// killGrace is how long Stop waits after SIGKILL until Envoy has ended. It exceeds outputGrace, the time limit for the
// end of Envoy's output.
const killGrace = 3 * outputGrace

// reapGrace limits the wait for the kernel to reap a zombie, and for a read of the kernel's OOM kill count.
const reapGrace = time.Second

// Config configures Start.
type Config struct {
	// Path is the binary, Args its arguments (see Options.Args), Dir its working directory.
	Path string
	Args []string
	Dir  string
	// Env is the whole environment as "name=value"; nil: this process's environment.
	Env []string
	// Output is called with each line of Envoy's standard output and error, in order and never concurrently. Envoy
	// blocks until it returns. nil discards the lines; Exit contains the last ones anyway.
	Output func(line string)
	// Rewrite, if set, returns the text that replaces a line of output, both in Output and in Exit. If ok is false, the
	// line is discarded. Calls are in order and never concurrent.
	Rewrite func(line string) (text string, ok bool)
	Logger  *slog.Logger
	// User is the user as which Envoy runs; nil: this process's user. It requires that this process is root.
	User *owner.Owner
	// NoNewPrivileges sets no_new_privs: neither Envoy nor a program that it executes gains privileges from a file's
	// set-user-ID bit or capabilities.
	NoNewPrivileges bool
}

// Process is a started Envoy. Its methods are safe for concurrent use.
type Process struct {
	pid        int
	cmd        *exec.Cmd
	log        *slog.Logger
	started    time.Time
	output     *outputReader
	oom        *oomWatcher
	done       chan struct{}
	terminated chan struct{}
	exitOnce   sync.Once // guards exit and closing done
	exit       Exit      // written before done is closed

	mu          sync.Mutex
	ended       bool // Envoy is a zombie or was reaped; the method signal then sends no signal
	sentSIGTERM bool // Stop sent SIGTERM
	sentSIGKILL bool // Stop sent SIGKILL
}

// Start starts Envoy in its own process group, so that Ctrl-C in a terminal does not stop it before this process has
// drained it. The kernel kills Envoy when this process ends.
func Start(c Config) (*Process, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Process{log: c.Logger, done: make(chan struct{}), terminated: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting Envoy: creating a pipe for its output: %w", err)
	}
	p.cmd = &exec.Cmd{Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: c.Dir, Env: c.Env, Stdout: write, Stderr: write}
	started := make(chan error)
	// For access logs, Envoy opens the pipe again by its path /dev/stdout.
	if err := c.User.ChownOpen(write); err != nil {
		return nil, fmt.Errorf("starting Envoy: changing the owner of its output pipe to user %d: %w", c.User.UID, errors.Join(err, read.Close(), write.Close()))
	}
	go p.run(started, c)
	err = <-started
	_ = write.Close() // the child has a copy
	if err != nil {
		_ = read.Close()
		return nil, startError(c, err)
	}
	p.output = readOutput(read, c.Rewrite, c.Output)
	started <- nil // the caller of Start continues, and run waits for Envoy's exit
	p.log.Info("Envoy started", "pid", p.pid, "path", c.Path, "args", c.Args)
	return p, nil
}

func startError(c Config, err error) error {
	if c.Dir != "" {
		if _, statErr := os.Stat(c.Dir); statErr != nil {
			return fmt.Errorf("starting Envoy: checking its working directory: %w", statErr)
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return &NotFoundError{Searched: []string{c.Path + ": " + unwrapPathError(err).Error()}}
	}
	if c.User != nil && errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("starting Envoy as user %d: %w: allow that user to read and execute %s, and to search its parent directories", c.User.UID, err, c.Path)
	}
	return fmt.Errorf("starting Envoy: %w", err)
}

// PID returns the process ID of Envoy, which is also its process group ID.
func (p *Process) PID() int { return p.pid }

// Done is closed when Envoy and its process group have ended and all their output was read. If Stop stops waiting for
// Envoy's end, it closes Done earlier.
func (p *Process) Done() <-chan struct{} { return p.done }

// Terminated is closed when Envoy's process has ended. If Stop stops waiting for Envoy's end, Terminated is closed
// later than Done.
func (p *Process) Terminated() <-chan struct{} { return p.terminated }

// Exit waits until Done is closed, and describes how Envoy ended.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Stop sends SIGTERM to Envoy's process group. If ctx ends first, it closes the listeners (see CloseListeners) and
// sends SIGKILL. It returns when Envoy has ended, or six seconds after SIGKILL. The kernel may need longer to end
// Envoy, for example if a thread waits for a disk. Envoy closes its connections on SIGTERM, so callers drain it before
// (Admin.DrainListeners). If calls of Stop are concurrent, the first context that ends determines when SIGKILL is sent.
func (p *Process) Stop(ctx context.Context) Exit {
	if ctx.Err() == nil {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return p.exit
		case <-ctx.Done():
			p.log.Warn("Envoy did not end by the deadline after SIGTERM; sending SIGKILL", "pid", p.pid)
		}
	}
	if err := p.CloseListeners(); err != nil {
		p.log.Debug("cannot close Envoy's listeners; the ports remain occupied until Envoy has ended", "pid", p.pid, "error", err)
	}
	p.signal(syscall.SIGKILL)
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		exit := Exit{
			Reason: Stopped, Code: -1, Signal: syscall.SIGKILL, Forced: true, HungThreads: describeThreads(p.pid),
			Ran: time.Since(p.started), Tail: p.output.lastLines(),
		}
		if exit.HungThreads == "" { // Envoy has ended, but awaitExit has not recorded it yet
			exit.Code, exit.Signal, exit.Forced = 0, 0, false
		}
		p.recordExit(exit)
	}
	return p.Exit()
}

// CloseListeners permanently closes Envoy's listening sockets from outside, except those that other processes share. It
// is for an Envoy that hangs. Otherwise no process would serve the connections that the kernel assigns to this Envoy,
// and ports that it does not share would remain occupied.
func (p *Process) CloseListeners() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	return closeListeners(p.pid)
}

// HungThreads describes Envoy's threads if Envoy was killed or has crashed, but the kernel has not ended the process
// yet. Otherwise, and while the kernel writes a core file, it returns "".
func (p *Process) HungThreads() (where string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !isDying(p.pid) {
		return ""
	}
	return describeThreads(p.pid)
}

// MarkReplaced records that another Envoy replaces this one and will terminate it. If this Envoy then exits without an
// error or because of SIGTERM, Exit.Reason is Stopped.
func (p *Process) MarkReplaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sentSIGTERM = true
}

// signal sends a signal to the process group. If the process has ended, it sends none, because the kernel may have
// reused the ID.
func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	if s == syscall.SIGKILL {
		p.sentSIGKILL = true
	} else {
		p.sentSIGTERM = true
	}
	if err := signalGroup(p.pid, s); err != nil {
		p.log.Warn("cannot send a signal to Envoy", "pid", p.pid, "signal", signalName(s), "error", err)
	}
}

// run starts Envoy, waits for its exit, and records it. It runs in its own goroutine, which is locked to a thread: the
// kernel kills the child when the thread that created it ends.
func (p *Process) run(started chan error, c Config) {
	release := lockThread()
	if c.NoNewPrivileges {
		// The child inherits no_new_privs from this thread. The thread must not start other children, so the goroutine
		// stays locked to it, and the thread ends with the goroutine.
		if err := setNoNewPrivs(); err != nil {
			started <- err
			return
		}
	} else {
		defer release()
	}
	setDeathSignal(p.cmd)
	setCredential(p.cmd, c.User)
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	p.oom = startOOMWatcher(cgroup.Self().OOMKills, oomInterval)
	started <- nil
	<-started
	p.awaitExit()
}

// awaitExit waits until Envoy is a zombie, ends the process group, and then reaps the process. While the process is a
// zombie, its ID is not reused, so a signal to the group cannot reach other processes.
func (p *Process) awaitExit() {
	status, known := awaitZombie(p.pid)
	if known {
		p.mu.Lock()
		p.ended = true
		_ = killGroup(p.pid) // end the child processes of Envoy that still run
		p.mu.Unlock()
	}
	reaped := make(chan error, 1)
	go func() { reaped <- p.cmd.Wait() }()
	if known {
		receiveWithin(reapGrace, reaped)
	} else {
		status = p.waitStatus(<-reaped)
	}
	p.oom.stop()
	exit := p.classifyExit(status)
	exit.Tail = p.output.finish()
	if !p.recordExit(exit) {
		p.log.Info("Envoy has ended; the agent had already stopped waiting for it", "pid", p.pid)
	}
	close(p.terminated)
}

// waitStatus returns the wait status from cmd.Wait, for systems on which awaitZombie fails.
func (p *Process) waitStatus(err error) syscall.WaitStatus {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	if state := p.cmd.ProcessState; state != nil {
		return state.Sys().(syscall.WaitStatus)
	}
	p.log.Warn("waiting for Envoy failed", "pid", p.pid, "error", err)
	return statusUnknown
}

// receiveWithin returns the next of values, or the zero value if none arrives within limit. The limit is necessary
// because the wait for an exited process can block for over ten seconds on an overloaded machine.
func receiveWithin[T any](limit time.Duration, values <-chan T) (value T) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case value = <-values:
	case <-timer.C:
	}
	return value
}

// recordExit records and logs how Envoy ended. It returns false if an exit was already recorded.
func (p *Process) recordExit(e Exit) (first bool) {
	p.exitOnce.Do(func() {
		first = true
		p.exit = e
		p.logExit()
		close(p.done)
	})
	return first
}

func (p *Process) logExit() {
	level := slog.LevelError
	if p.exit.Reason == Stopped && p.exit.HungThreads == "" {
		level = slog.LevelInfo
	}
	p.log.Log(context.Background(), level, "Envoy "+p.exit.String(), "pid", p.pid, "reason", string(p.exit.Reason), "exitCode", p.exit.ExitCode())
}
