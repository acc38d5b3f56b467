package command

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// Exit codes of the agent's commands, other than Envoy's own.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitNoEnvoy   = 127
	exitCannotRun = 126 // `run`: the program cannot be executed; shells use the same code
	exitNoProgram = 127 // `run`: the program was not found; shells use the same code
	exitTimeout   = 255 // `wait` and `run`: the proxy was not ready in time; Istio's agent uses the same code
)

// usageError reports an invalid command line or configuration, which the user must correct.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitCodeError is an error with the exit code for the process.
type exitCodeError struct {
	error
	code int
}

func (e exitCodeError) Unwrap() error { return e.error }

// ExitCode returns the exit code for an error of the agent's commands. It returns 0 for nil, 2 for invalid flags or
// configuration, and 127 if no usable Envoy was found. If Envoy exited, it returns Envoy's exit code, or 128 plus the
// number of the signal that killed it. If the error contains an exit code, it returns that code. For all other errors
// it returns 1.
func ExitCode(err error) int {
	var (
		ended    *agent.EnvoyEndedError
		coded    exitCodeError
		usage    usageError
		invalid  agent.ConfigError
		missing  *envoy.NotFoundError
		tooOld   *envoy.TooOldError
		notEnvoy *envoy.NotEnvoyError
		exit     interface{ ProcessExitCode() int } // of the redirection command
	)
	switch {
	case err == nil:
		return 0
	case errors.As(err, &ended):
		return ended.Exit.ExitCode()
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &exit):
		return exit.ProcessExitCode()
	case errors.As(err, &missing), errors.As(err, &tooOld), errors.As(err, &notEnvoy):
		return exitNoEnvoy
	case errors.Is(err, config.ErrNoAddress):
		return exitFailed
	case errors.As(err, &usage), errors.As(err, &invalid):
		return exitUsage
	}
	return exitFailed
}
