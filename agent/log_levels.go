package agent

import (
	"github.com/pilotfish-mesh/pilotfish/agent/logging"
)

// newLogLevels creates the log level controller and registers its handler on the control socket.
func (a *Agent) newLogLevels() (*logging.LevelController, error) {
	c := a.Config.Envoy
	start, err := logging.ParseEnvoyLevels("--proxyLogLevel", "warning,"+c.LogLevel+","+c.ComponentLogLevel)
	if err != nil {
		return nil, ConfigError{err}
	}
	l := logging.NewLevelController(a.Log, a.Logger, start, func() logging.EnvoyLog {
		if i := a.currentEnvoy(); i != nil {
			return i.admin
		}
		return nil
	})
	a.control.Handle("POST /log", jsonHandler(l.Handle))
	return l, nil
}
