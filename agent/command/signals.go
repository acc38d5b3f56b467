package command

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/agent"
)

// signals provides the signals that the agent process receives.
type signals struct {
	// ctx ends at the first SIGTERM, SIGINT or SIGHUP. shorten is closed at the second of these signals, and drain at
	// SIGUSR2.
	ctx     context.Context
	shorten chan struct{}
	drain   chan struct{}
	stop    func()
}

// handleSignals starts to receive signals. The caller must call stop.
func handleSignals(parent context.Context, logger *slog.Logger) *signals {
	ctx, cancel := context.WithCancel(parent)
	s := &signals{ctx: ctx, shorten: make(chan struct{}), drain: make(chan struct{})}
	incoming := make(chan os.Signal, 4)
	signal.Notify(incoming, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR2)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		// The kernel sends SIGHUP when the terminal is closed. Without a handler, it would terminate the process and
		// cut requests.
		signal.Notify(incoming, syscall.SIGHUP)
	}
	done := make(chan struct{})
	go func() {
		shorten, drain := sync.OnceFunc(func() { close(s.shorten) }), sync.OnceFunc(func() { close(s.drain) })
		for {
			select {
			case got := <-incoming:
				if got == syscall.SIGUSR2 {
					logger.Info("received a signal to drain", "signal", got.String())
					drain()
					continue
				}
				logger.Info("received a signal to stop", "signal", got.String())
				if ctx.Err() != nil {
					shorten()
				}
				cancel()
			case <-done:
				return
			}
		}
	}()
	s.stop = func() { signal.Stop(incoming); close(done); cancel() }
	return s
}

// notifyReopen returns a channel that receives SIGUSR1, the signal to reopen log files. It must be called early, because
// SIGUSR1 terminates the process by default.
func notifyReopen() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	return signals
}

// reopenOnSignal reopens the logs at each signal until stop is called.
func reopenOnSignal(a *agent.Agent, signals chan os.Signal) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-signals:
				a.ReopenLogs(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { signal.Stop(signals); cancel(); <-done }
}
