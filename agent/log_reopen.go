package agent

import (
	"context"
	"time"
)

// reopenTimeout is the timeout of the request that makes Envoy reopen its access logs.
const reopenTimeout = 5 * time.Second

// ReopenLogs reopens the log files of agent and Envoy by name, for log rotation. It logs errors. If a file cannot be
// reopened, the agent continues to write to the old one.
func (a *Agent) ReopenLogs(ctx context.Context) {
	if a.Log != nil {
		if err := a.Log.Reopen(); err != nil {
			a.Logger.Error("cannot reopen the log file", "error", err)
		}
	}
	if i := a.currentEnvoy(); i != nil {
		ctx, cancel := context.WithTimeout(ctx, reopenTimeout)
		defer cancel()
		if err := i.admin.ReopenLogs(ctx); err != nil {
			a.Logger.Error("Envoy did not reopen its access logs", "error", err)
			return
		}
	}
	a.Logger.Info("log files reopened")
}

// currentEnvoy returns the current Envoy; nil if there is none.
func (a *Agent) currentEnvoy() *envoyInstance {
	if a.envoy == nil {
		return nil
	}
	return a.envoy.currentInstance()
}

// EnvoyPID returns the PID of the current Envoy; 0 if there is none.
func (a *Agent) EnvoyPID() int {
	if i := a.currentEnvoy(); i != nil {
		return i.process.PID()
	}
	return 0
}
