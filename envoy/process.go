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

// killGrace is how long an Envoy may take to end, and its end to be told, after SIGKILL. It is longer than what is waited for
// its output.
const killGrace = 3 * outputGrace

// reapGrace is how long the news of an end that is known waits for the process to be taken out of the kernel's table, and for
// evidence of a lack of memory.
const reapGrace = time.Second

// Config says how to start an Envoy.
type Config struct {
	// Path is the binary, Args its arguments (Options.Args makes them), Dir its working directory.
	Path string
	Args []string
	Dir  string
	// Env is its whole environment, as "name=value"; nil is this process's own.
	Env []string
	// Output is called with each line that Envoy writes to its standard output and error, in order and never
	// concurrently. Envoy waits while it does not return. Nil drops the lines; the last ones are kept for Exit anyway.
	Output func(line string)
	// Rewrite, when set, gives what is kept and told of a line, in order and never concurrently; not ok is nothing.
	Rewrite func(line string) (text string, ok bool)
	Logger  *slog.Logger
	// User is who Envoy runs as, for a process that is root; nil is this process's user.
	User *owner.Owner
}

// Process is an Envoy that was started. Its methods are safe for concurrent use.
type Process struct {
	pid     int
	cmd     *exec.Cmd
	log     *slog.Logger
	started time.Time
	output  *output
	oom     *oomWatch
	done    chan struct{}
	gone    chan struct{}
	told    sync.Once // guards exit and the close of done
	exit    Exit      // written before done is closed

	mu     sync.Mutex
	ended  bool // the process is a zombie at most: no signal goes to it any more
	termed bool // Stop sent SIGTERM
	killed bool // Stop sent SIGKILL
}

// Start starts an Envoy in a process group of its own, so that a terminal's Ctrl-C does not reach it before its owner has
// drained it, and so that it dies with this process whichever way that ends.
func Start(c Config) (*Process, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Process{log: c.Logger, done: make(chan struct{}), gone: make(chan struct{})}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting Envoy: a pipe for its output: %w", err)
	}
	p.cmd = &exec.Cmd{Path: c.Path, Args: append([]string{c.Path}, c.Args...), Dir: c.Dir, Env: c.Env, Stdout: write, Stderr: write}
	started := make(chan error)
	if err := c.User.GiveOpen(write); err != nil { // Envoy opens it by name again, for access logs
		return nil, fmt.Errorf("starting Envoy: giving its output to user %d: %w", c.User.UID, errors.Join(err, read.Close(), write.Close()))
	}
	go p.own(started, c.User)
	err = <-started
	_ = write.Close() // the child has its own
	if err != nil {
		_ = read.Close()
		return nil, startError(c, err)
	}
	p.output = readOutput(read, c.Rewrite, c.Output)
	started <- nil // own may now wait for the output's end
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
		return &NotFoundError{Looked: []string{c.Path + ": " + reasonOf(err).Error()}}
	}
	if c.User != nil && errors.Is(err, syscall.EACCES) {
		return fmt.Errorf("starting Envoy as user %d: %w: let that user read and execute %s, and enter the directories that it is in", c.User.UID, err, c.Path)
	}
	return fmt.Errorf("starting Envoy: %w", err)
}

// PID is Envoy's process id, and that of its process group.
func (p *Process) PID() int { return p.pid }

// Done is closed when Envoy has ended, its whole process group is gone and its output is read, or when Stop gave up.
func (p *Process) Done() <-chan struct{} { return p.done }

// Gone is closed when Envoy has ended: after Done, where Stop gave up.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Exit tells how Envoy ended. It waits for the end.
func (p *Process) Exit() Exit {
	<-p.done
	return p.exit
}

// Stop ends Envoy: SIGTERM to its process group, and when the context ends before that is done, SIGKILL. It returns when
// Envoy is gone, or when the kernel has not ended it six seconds after SIGKILL, as where a thread of it waits for a disk:
// it ends with its owner at the latest. Envoy cuts its connections at SIGTERM: drain first (Admin.DrainListeners). Several callers may stop;
// the first context to end decides. Before SIGKILL its listeners are closed, as by Unlisten.
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
	if err := p.Unlisten(); err != nil {
		p.log.Debug("should Envoy outlive SIGKILL, it will keep its ports", "pid", p.pid, "error", err)
	}
	p.signal(syscall.SIGKILL)
	timer := time.NewTimer(killGrace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		exit := Exit{
			Reason: Stopped, Code: -1, Signal: syscall.SIGKILL, Forced: true, Remains: remains(p.pid),
			Ran: time.Since(p.started), Tail: p.output.last(),
		}
		if exit.Remains == "" { // it is gone, and only the news of it are not here
			exit.Code, exit.Signal, exit.Forced = 0, 0, false
		}
		p.conclude(exit)
	}
	return p.Exit()
}

// Unlisten closes the sockets at which Envoy listens, from without and for good, where no other process has them too: one
// that does not answer, or does not end, would leave unanswered what the kernel gives it of a port that it shares, and keep
// a port that it does not.
func (p *Process) Unlisten() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	return unlisten(p.pid)
}

// Lingers says where an Envoy hangs that has been killed, or has crashed, and that the kernel has not ended yet: the states
// of its threads. It is nothing for all others, and while a core file is written.
func (p *Process) Lingers() (where string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || !dying(p.pid) {
		return ""
	}
	return remains(p.pid)
}

// Superseded says that another Envoy takes over and will end this one, so that an end without an error counts as Stopped.
func (p *Process) Superseded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.termed = true
}

// signal sends to the whole process group, unless the process has ended: its id may be another's by then.
func (p *Process) signal(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	if s == syscall.SIGKILL {
		p.killed = true
	} else {
		p.termed = true
	}
	if err := signalGroup(p.pid, s); err != nil {
		p.log.Warn("signalling Envoy failed", "pid", p.pid, "signal", signalName(s), "error", err)
	}
}

// own starts the process, waits for its end, and tells it. It is a goroutine of its own for the sake of the thread: the
// kernel ends the child when the thread that made it ends, so that thread has to live, and belong to this goroutine, as
// long as the child does.
func (p *Process) own(started chan error, user *owner.Owner) {
	release := holdThread()
	defer release()
	dieWithOwner(p.cmd)
	runAs(p.cmd, user)
	p.started = time.Now()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	p.pid = p.cmd.Process.Pid
	p.oom = watchOOM(cgroup.Self().OOMKills, oomInterval)
	started <- nil
	<-started
	p.awaitEnd()
}

// awaitEnd looks at the end before it reaps: as long as the zombie keeps the process id, a signal to the group cannot
// reach strangers.
func (p *Process) awaitEnd() {
	status, known := awaitZombie(p.pid)
	if known {
		p.mu.Lock()
		p.ended = true
		_ = killGroup(p.pid) // whoever Envoy left behind
		p.mu.Unlock()
	}
	reaped := make(chan error, 1)
	go func() { reaped <- p.cmd.Wait() }()
	if known {
		soon(reapGrace, reaped)
	} else {
		status = p.reaped(<-reaped)
	}
	p.oom.stop()
	exit := p.verdict(status)
	exit.Tail = p.output.finish()
	if !p.conclude(exit) {
		p.log.Info("Envoy has ended after all", "pid", p.pid)
	}
	close(p.gone)
}

// reaped is the status of a process whose end was not seen before it was reaped.
func (p *Process) reaped(err error) syscall.WaitStatus {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	if state := p.cmd.ProcessState; state != nil {
		return state.Sys().(syscall.WaitStatus)
	}
	p.log.Warn("waiting for Envoy failed", "pid", p.pid, "error", err)
	return statusUnknown
}

// soon gives what comes by a channel, or nothing when it takes too long. On a crowded machine the end of a process that the
// kernel did not know any more was seen to go untold for over ten seconds.
func soon[T any](limit time.Duration, from <-chan T) (value T) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case value = <-from:
	case <-timer.C:
	}
	return value
}

// conclude tells how Envoy ended, unless that was told before.
func (p *Process) conclude(e Exit) (first bool) {
	p.told.Do(func() {
		first = true
		p.exit = e
		p.report()
		close(p.done)
	})
	return first
}

func (p *Process) report() {
	level := slog.LevelError
	if p.exit.Reason == Stopped && p.exit.Remains == "" {
		level = slog.LevelInfo
	}
	p.log.Log(context.Background(), level, "Envoy "+p.exit.String(), "pid", p.pid, "reason", string(p.exit.Reason), "exitCode", p.exit.ExitCode())
}
