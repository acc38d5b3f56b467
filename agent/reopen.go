package agent

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// reopenTime bounds how long Envoy may take to open its access logs again.
const reopenTime = 5 * time.Second

// ReopenLogs opens the log files of agent and Envoy again by their names, for whoever moved them away. What fails is
// logged; where a file cannot be opened again, the one that was moved away is written on.
func (a *Agent) ReopenLogs(ctx context.Context) {
	if a.Log != nil {
		if err := a.Log.Reopen(); err != nil {
			a.Logger.Error("log file not opened again", "error", err)
		}
	}
	if i := a.envoyInstance(); i != nil {
		ctx, cancel := context.WithTimeout(ctx, reopenTime)
		defer cancel()
		if err := i.admin.ReopenLogs(ctx); err != nil {
			a.Logger.Error("Envoy did not open its access logs again", "error", err)
			return
		}
	}
	a.Logger.Info("log files opened again")
}

// envoyInstance is the Envoy that runs now, or nil.
func (a *Agent) envoyInstance() *instance {
	if a.envoy == nil {
		return nil
	}
	return a.envoy.instance()
}

// catchReopen takes SIGUSR1, which would end the process otherwise, from the moment that there is one.
func catchReopen() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	return signals
}

// reopenOn opens the logs again at each signal, until it is stopped.
func (a *Agent) reopenOn(signals chan os.Signal) (stop func()) {
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
