package command

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// Exit codes of the agent's commands, other than Envoy's own.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitNoEnvoy   = 127
	exitCannotRun = 126 // `run`: as in a shell, the program is not executable
	exitNoProgram = 127 // `run`: as in a shell, the program was not found
	exitTimeout   = 255 // `wait` timed out, as in Istio's agent
)

// usageError is an error of the command line or the configuration. A retry would fail too.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCodeError is an error with its own exit code.
type exitCodeError struct {
	error
	code int
}

func (e exitCodeError) Unwrap() error { return e.error }

// ExitCode returns the exit code for the error of one of the agent's commands: 0 for nil; Envoy's own code if Envoy
// exited (128 plus the signal number for a signal); 127 if no usable Envoy was found; 2 for invalid flags or
// configuration; and otherwise 1.
func ExitCode(err error) int {
	var (
		ended    *agent.EnvoyEndedError
		coded    exitCodeError
		usage    usageError
		invalid  agent.ConfigError
		missing  *envoy.NotFoundError
		tooOld   *envoy.TooOldError
		notEnvoy *envoy.NotEnvoyError
		exit     *redirect.ExitError
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.Exit.ExitCode()
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &exit):
		return exit.Code
	case errors.As(err, &missing), errors.As(err, &tooOld), errors.As(err, &notEnvoy):
		return exitNoEnvoy
	case errors.Is(err, config.ErrNoAddress):
		return exitFailed
	case errors.As(err, &usage), errors.As(err, &invalid):
		return exitUsage
	}
	return exitFailed
}
