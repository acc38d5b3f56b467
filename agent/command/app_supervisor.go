package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent"
)

const (
	// appReadyPollInterval is the interval between readiness requests to the proxy. appReadyRequestTimeout is the timeout
	// of one request.
	appReadyPollInterval   = 50 * time.Millisecond
	appReadyRequestTimeout = time.Second
	// orphanGracePeriod is the time between SIGTERM and SIGKILL to an application whose proxy has exited.
	orphanGracePeriod = 10 * time.Second
)

// forwardedSignals are the signals that the agent forwards to the application. It does not forward terminalSignals if
// the application is in the agent's process group, because the terminal then sends them to the application too.
var (
	forwardedSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT}
	terminalSignals = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGCONT}
)

// appSupervisor runs an application together with its proxy. It starts the application when the proxy is ready, and
// stops the proxy when the application exits.
type appSupervisor struct {
	agent       *agent.Agent
	path        string
	argv        []string
	timeout     time.Duration // maximum time until the proxy is ready
	signals     chan os.Signal
	sharesGroup bool

	proxy chan error // receives the result of the proxy's Run
	app   *application
}

func newAppSupervisor(a *agent.Agent, path string, argv []string, timeout time.Duration) *appSupervisor {
	j := &appSupervisor{agent: a, path: path, argv: argv, timeout: timeout, sharesGroup: isInForeground(),
		signals: make(chan os.Signal, 16), proxy: make(chan error, 1)}
	signal.Notify(j.signals, forwardedSignals...)
	return j
}

// run runs the proxy and the application until both have exited. It returns nil if the application exited with code 0,
// and otherwise an error that contains the exit code for this program.
func (j *appSupervisor) run(ctx context.Context) error {
	defer signal.Stop(j.signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { j.proxy <- j.agent.Run(ctx) }()
	if err := j.awaitReady(ctx); err != nil {
		return err
	}
	app, err := startApplication(j.path, j.argv, j.sharesGroup)
	if err != nil {
		j.stopProxy()
		return err
	}
	j.app = app
	j.agent.Logger.Info("application started", "pid", app.pid(), "path", j.path)
	if os.Getpid() == 1 {
		go reapOrphans(ctx, j.isOwnChild)
	}
	return j.supervise()
}

// awaitReady waits until the proxy is ready. If the wait times out or a stop signal arrives, it stops the proxy and returns
// an error.
func (j *appSupervisor) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := waiter{url: j.agent.StatusURL("/healthz/ready"), timeout: j.timeout, period: appReadyPollInterval, client: j.agent.StatusClient(appReadyRequestTimeout)}
	ready := make(chan error, 1)
	go func() { ready <- w.wait(ctx) }()
	for {
		select {
		case err := <-ready:
			if err != nil {
				j.stopProxy()
				return fmt.Errorf("the application is not started: %w", err)
			}
			return nil
		case err := <-j.proxy:
			return fmt.Errorf("the application is not started: %w", asUnexpectedEnd(err))
		case s := <-j.signals:
			if number, ok := isStopSignal(s); ok {
				j.stopProxy()
				return exitCodeError{fmt.Errorf("the application is not started: received the stop signal %s before the proxy was ready", s), 128 + number}
			}
		}
	}
}

// isStopSignal returns the number of s, and reports whether s requests a stop.
func isStopSignal(s os.Signal) (int, bool) {
	number, ok := s.(syscall.Signal)
	return int(number), ok && slices.Contains([]os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP}, s)
}

// supervise forwards signals until application or proxy exits, and then stops the other one. After POST /quitquitquit,
// the proxy stops and the application continues without it, without a time limit.
func (j *appSupervisor) supervise() error {
	proxy := j.proxy
	for {
		select {
		case s := <-j.signals:
			j.forwardSignal(s)
		case <-j.app.done:
			j.agent.Logger.Info("application exited", "status", j.app.cmd.ProcessState.String())
			if proxy != nil {
				j.stopProxy()
			}
			return j.app.exitError()
		case err := <-proxy:
			if !j.agent.HasQuit() {
				return j.stopOrphan(asUnexpectedEnd(err))
			}
			j.logProxyEnd(err)
			j.agent.Logger.Info("the proxy exited as requested; the application continues without it")
			proxy = nil
		}
	}
}

func (j *appSupervisor) forwardSignal(s os.Signal) {
	if s == syscall.SIGTERM {
		// The application is about to exit. The drain makes its clients reconnect to other instances. Meanwhile the
		// application can still send requests through the proxy.
		go j.agent.StartDrain("the signal to stop")
	}
	if j.sharesGroup && slices.Contains(terminalSignals, s) {
		return
	}
	j.app.signal(s)
}

// stopOrphan stops an application whose proxy has exited.
func (j *appSupervisor) stopOrphan(cause error) error {
	j.agent.Logger.Error("the proxy exited before the application; stopping the application", "error", cause, "timeout", orphanGracePeriod)
	j.app.signal(syscall.SIGTERM)
	deadline := time.NewTimer(orphanGracePeriod)
	defer deadline.Stop()
	for {
		select {
		case s := <-j.signals:
			j.app.signal(s)
		case <-deadline.C:
			j.agent.Logger.Error("the application did not stop in time; killing it", "pid", j.app.pid())
			j.app.kill()
		case <-j.app.done:
			return fmt.Errorf("the proxy exited before the application, which was stopped (%s): %w", j.app.cmd.ProcessState, cause)
		}
	}
}

// stopProxy stops the proxy without a drain, because its application has exited or was never started.
func (j *appSupervisor) stopProxy() {
	j.agent.Quit()
	j.logProxyEnd(<-j.proxy)
}

func (j *appSupervisor) logProxyEnd(err error) {
	if err != nil {
		j.agent.Logger.Warn("the proxy exited with an error", "error", err)
	}
}

// isOwnChild reports whether the agent started the process pid and waits for its exit.
func (j *appSupervisor) isOwnChild(pid int) bool {
	return pid == j.agent.EnvoyPID() || pid == j.app.pid()
}

// asUnexpectedEnd returns the error for an unrequested exit of the proxy. It returns an error even if err, the result
// of the proxy, is nil.
func asUnexpectedEnd(err error) error {
	var ended *agent.EnvoyEndedError
	switch {
	case err == nil:
		return errors.New("the proxy was stopped")
	case errors.As(err, &ended) && ended.Exit.ExitCode() == 0:
		return exitCodeError{err, exitFailed}
	}
	return err
}
