package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

const (
	// jobPoll is how often the proxy is asked whether it is ready, and jobAsk how long one answer may take.
	jobPoll = 50 * time.Millisecond
	jobAsk  = time.Second
	// orphanGrace is what the application gets to end when its proxy is gone.
	orphanGrace = 10 * time.Second
)

// The signals that are passed on to the application. Those of the terminal reach an application in the agent's process
// group by themselves.
var (
	passedOn = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2,
		syscall.SIGWINCH, syscall.SIGCONT}
	ofTerminal = []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP, syscall.SIGWINCH, syscall.SIGCONT}
)

// job is an application beside its proxy: it is started when the proxy is ready, and the proxy ends with it.
type job struct {
	agent   *Agent
	path    string
	argv    []string
	timeout time.Duration // for the proxy to become ready
	signals chan os.Signal
	shared  bool

	proxy chan error // gets what came of the proxy
	app   *application
}

func newJob(a *Agent, path string, argv []string, timeout time.Duration) *job {
	j := &job{agent: a, path: path, argv: argv, timeout: timeout, shared: inForeground(),
		signals: make(chan os.Signal, 16), proxy: make(chan error, 1)}
	signal.Notify(j.signals, passedOn...)
	return j
}

// run gives the application's end as an error with its exit code.
func (j *job) run(ctx context.Context) error {
	defer signal.Stop(j.signals)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { j.proxy <- j.agent.Run(ctx) }()
	if err := j.awaitReady(ctx); err != nil {
		return err
	}
	app, err := startApplication(j.path, j.argv, j.shared)
	if err != nil {
		j.endProxy()
		return err
	}
	j.app = app
	j.agent.Logger.Info("application started", "pid", app.pid(), "path", j.path)
	if os.Getpid() == 1 {
		go reapOrphans(ctx, j.owns)
	}
	return j.follow()
}

// awaitReady waits for the proxy, and ends it when it does not become ready, or when a signal to end comes first.
func (j *job) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w := waiter{url: j.agent.statusURL("/healthz/ready"), timeout: j.timeout, period: jobPoll, client: j.agent.statusClient(jobAsk)}
	ready := make(chan error, 1)
	go func() { ready <- w.wait(ctx) }()
	for {
		select {
		case err := <-ready:
			if err != nil {
				j.endProxy()
				return fmt.Errorf("the application is not started: %w", err)
			}
			return nil
		case err := <-j.proxy:
			return fmt.Errorf("the application is not started: %w", orEnded(err))
		case s := <-j.signals:
			if number, ok := endsProcess(s); ok {
				j.endProxy()
				return codedError{fmt.Errorf("the application was not started yet when the signal to stop came (%s)", s), 128 + number}
			}
		}
	}
}

// endsProcess says whether a signal asks for the end, and its number.
func endsProcess(s os.Signal) (int, bool) {
	number, ok := s.(syscall.Signal)
	return int(number), ok && slices.Contains([]os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP}, s)
}

// follow passes signals on until application or proxy end, and then ends the other one. An application that needs its proxy
// no longer may say so (POST /quitquitquit), as jobs do at their end, and has all the time that it takes after that.
func (j *job) follow() error {
	proxy := j.proxy
	for {
		select {
		case s := <-j.signals:
			j.passOn(s)
		case <-j.app.done:
			j.agent.Logger.Info("application ended", "how", j.app.cmd.ProcessState.String())
			if proxy != nil {
				j.endProxy()
			}
			return j.app.err()
		case err := <-proxy:
			if !j.agent.orders.quit.given() {
				return j.orphaned(orEnded(err))
			}
			j.noteEnd(err)
			j.agent.Logger.Info("the proxy has ended as it was asked to; the application goes on without it")
			proxy = nil
		}
	}
}

func (j *job) passOn(s os.Signal) {
	if s == syscall.SIGTERM {
		// The application is about to go: whoever calls it has to go elsewhere, while it can still call others.
		go j.agent.drainAndStay("the signal to stop")
	}
	if j.shared && slices.Contains(ofTerminal, s) {
		return
	}
	j.app.signal(s)
}

// orphaned ends an application whose proxy is gone.
func (j *job) orphaned(cause error) error {
	j.agent.Logger.Error("the proxy ended before the application, which is told to end", "error", cause, "within", orphanGrace)
	j.app.signal(syscall.SIGTERM)
	deadline := time.NewTimer(orphanGrace)
	defer deadline.Stop()
	for {
		select {
		case s := <-j.signals:
			j.app.signal(s)
		case <-deadline.C:
			j.agent.Logger.Error("the application did not end, and is killed", "pid", j.app.pid())
			j.app.kill()
		case <-j.app.done:
			return fmt.Errorf("the proxy ended before the application, which was told to end (%s): %w", j.app.cmd.ProcessState, cause)
		}
	}
}

// endProxy ends the proxy without a drain: the one that it served is gone.
func (j *job) endProxy() {
	j.agent.orders.quit.give()
	j.noteEnd(<-j.proxy)
}

func (j *job) noteEnd(err error) {
	if err != nil {
		j.agent.Logger.Warn("the proxy's end", "error", err)
	}
}

// owns says which children of this process somebody here waits for.
func (j *job) owns(pid int) bool {
	if i := j.agent.envoyInstance(); i != nil && i.process.PID() == pid {
		return true
	}
	return pid == j.app.pid()
}

// orEnded makes an error of a proxy's end that looks like none, since nobody had asked for it yet.
func orEnded(err error) error {
	var ended *EnvoyEndedError
	switch {
	case err == nil:
		return errors.New("the proxy was told to end")
	case errors.As(err, &ended) && ended.Exit.ExitCode() == 0:
		return codedError{err, exitFailed}
	}
	return err
}

// statusClient asks the agent's own status server, also where that has no port.
func (a *Agent) statusClient(timeout time.Duration) *http.Client {
	client := directClient(timeout)
	if socket := a.bootstrap.StatusSocket; socket != "" {
		client.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}
	}
	return client
}

// statusURL is the address of something on the agent's own status port.
func (a *Agent) statusURL(path string) string {
	if a.bootstrap.StatusSocket != "" {
		return "http://localhost" + path
	}
	host, port, _ := net.SplitHostPort(a.bootstrap.StatusAddress())
	return "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + path // without a host it listens everywhere
}
