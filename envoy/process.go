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

// killGrace is how long to wait for Envoy's end and its report after SIGKILL. It is longer than the wait for its
// output.
const killGrace = 3 * outputGrace

// reapGrace is how long to wait, after the end is known, until the process is reaped, and for the evidence of an OOM
// kill.
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
	// Rewrite, if set, returns the text to store and to pass to Output for a line, in order and never concurrently. If
	// ok is false, the line is discarded.
	Rewrite func(line string) (text string, ok bool)
	Logger  *slog.Logger
	// User is the user of Envoy, if this process is root; nil: this process's user.
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
	ended       bool // the process is at most a zombie; no signal is sent to it
	sentSIGTERM bool // Stop sent SIGTERM
	sentSIGKILL bool // Stop sent SIGKILL
}

// Start starts an Envoy in its own process group, so that Ctrl-C in a terminal does not reach it before its owner has
// drained it. The kernel kills it when this process ends.
func Start(c Config) (*Process, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Process{log: c.Logger, done: make(chan struct{}), terminated: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting Envoy: a pipe for its output: %w", err)
	}
	p.cmd = &exec.Cmd{Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: c.Dir, Env: c.Env, Stdout: write, Stderr: write}
	started := make(chan error)
	if err := c.User.ChownOpen(write); err != nil { // Envoy reopens it by name for access logs
		return nil, fmt.Errorf("starting Envoy: giving its output to user %d: %w", c.User.UID, errors.Join(err, read.Close(), write.Close()))
	}
	go p.run(started, c)
	err = <-started
	_ = write.Close() // the child has a copy
	if err != nil {
		_ = read.Close()
		return nil, startError(c, err)
	}
	p.output = readOutput(read, c.Rewrite, c.Output)
	started <- nil // run now waits for the end
	p.log.Info("Envoy started", "pid", p.pid, "path", c.Path, "args", c.Args)
	return p, nil
}

func startError(c Config, err error) error {
	if c.Dir != "" {
		if _, statErr := os.Stat(c.Dir); statErr != nil {
			return fmt.Errorf("starting Envoy: its working directory: %w", statErr)
		}
	}
	if errors.Is(err, syscall.ENOENT) {
		return &NotFoundError{Searched: []string{c.Path + ": " + unwrapPathError(err).Error()}}
	}
	if c.User != nil && errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("starting Envoy as user %d: %w: let that user read and execute %s, and enter the directories that it is in", c.User.UID, err, c.Path)
	}
	return fmt.Errorf("starting Envoy: %w", err)
}

// PID returns the process ID of Envoy, which is also its process group ID.
func (p *Process) PID() int { return p.pid }

// Done is closed when Envoy and its process group have ended and the output is read, or when Stop gave up.
func (p *Process) Done() <-chan struct{} { return p.done }

// Terminated is closed when Envoy has ended. If Stop gave up, that is later than Done.
func (p *Process) Terminated() <-chan struct{} { return p.terminated }

// Exit waits for the end and describes it.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Stop sends SIGTERM to Envoy's process group. If ctx ends first, it closes the listeners (see CloseListeners) and
// sends SIGKILL. It returns when Envoy has ended. It also returns six seconds after SIGKILL if the kernel has not ended
// Envoy, for example because a thread waits for a disk; Envoy then ends with its owner at the latest. Envoy closes its
// connections on SIGTERM: drain first (Admin.DrainListeners). Stop may be called concurrently; the first context to end
// decides.
func (p *Process) Stop(ctx context.Context) Exit {
	if ctx.Err() == nil {
		p.signal(syscall.SIGTERM)
		select {
		case <-p.done:
			return p.exit
		case <-ctx.Done():
			p.log.Warn("Envoy did not end by the deadline after SIGTERM, killing it", "pid", p.pid)
		}
	}
	if err := p.CloseListeners(); err != nil {
		p.log.Debug("closing the listeners failed; if Envoy survives SIGKILL, it occupies its ports", "pid", p.pid, "error", err)
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
		if exit.HungThreads == "" { // it has ended, but awaitExit has not recorded it yet
			exit.Code, exit.Signal, exit.Forced = 0, 0, false
		}
		p.recordExit(exit)
	}
	return p.Exit()
}

// CloseListeners permanently closes Envoy's listening sockets from outside, except those that other processes share.
// Use it for an Envoy that hangs: otherwise connections that the kernel assigns to it are not served, and its unshared
// ports remain occupied.
func (p *Process) CloseListeners() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	return closeListeners(p.pid)
}

// HungThreads describes the threads of an Envoy that was killed or has crashed, but that the kernel has not ended yet.
// It returns "" for other processes, and while a core file is written.
func (p *Process) HungThreads() (where string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !isDying(p.pid) {
		return ""
	}
	return describeThreads(p.pid)
}

// MarkReplaced records that another Envoy replaces this one and will end it. An exit without an error is then reported
// as Stopped.
func (p *Process) MarkReplaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sentSIGTERM = true
}

// signal sends a signal to the process group, unless the process has ended: its ID may have been reused.
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
		p.log.Warn("signalling Envoy failed", "pid", p.pid, "signal", signalName(s), "error", err)
	}
}

// run starts the process, waits for its end, and records it. It needs its own goroutine, because the kernel kills the
// child when the thread that created it ends. So this goroutine occupies that thread while the child runs.
func (p *Process) run(started chan error, c Config) {
	release := lockThread()
	if c.NoNewPrivileges {
		// The child inherits no_new_privs from the thread. The thread must not start other children, so it ends with
		// this goroutine.
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

// awaitExit waits for the end before it reaps the process. While the process is a zombie, its ID is not reused, so a
// signal to the group cannot reach other processes.
func (p *Process) awaitExit() {
	status, known := awaitZombie(p.pid)
	if known {
		p.mu.Lock()
		p.ended = true
		_ = killGroup(p.pid) // Envoy's remaining children
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
		p.log.Info("Envoy ended after Stop had given up", "pid", p.pid)
	}
	close(p.terminated)
}

// waitStatus returns the status of a process that was reaped before its end was seen.
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

// receiveWithin returns the next value of a channel, or the zero value after limit. On an overloaded machine, the wait
// for a process that the kernel had already removed took over ten seconds.
func receiveWithin[T any](limit time.Duration, from <-chan T) (value T) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case value = <-from:
	case <-timer.C:
	}
	return value
}

// recordExit records and logs how Envoy ended. It reports false if that was recorded before.
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
