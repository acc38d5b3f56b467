package agent

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// signals are the orders that a process takes as signals.
type signals struct {
	// ctx ends with the first SIGTERM, SIGINT or SIGHUP, hasten is closed with the second, drain with a SIGUSR2.
	ctx    context.Context
	hasten chan struct{}
	drain  chan struct{}
	stop   func()
}

// takeSignals takes signals until stop is called.
func takeSignals(parent context.Context, logger *slog.Logger) *signals {
	ctx, cancel := context.WithCancel(parent)
	s := &signals{ctx: ctx, hasten: make(chan struct{}), drain: make(chan struct{})}
	incoming := make(chan os.Signal, 4)
	signal.Notify(incoming, syscall.SIGTERM, os.Interrupt, syscall.SIGUSR2)
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		signal.Notify(incoming, syscall.SIGHUP) // a terminal that is closed is no reason to cut requests
	}
	done := make(chan struct{})
	go func() {
		hasten, drain := sync.OnceFunc(func() { close(s.hasten) }), sync.OnceFunc(func() { close(s.drain) })
		for {
			select {
			case got := <-incoming:
				if got == syscall.SIGUSR2 {
					logger.Info("signal to drain", "signal", got.String())
					drain()
					continue
				}
				logger.Info("signal to stop", "signal", got.String())
				if ctx.Err() != nil {
					hasten()
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
