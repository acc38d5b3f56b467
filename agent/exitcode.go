package agent

import (
	"errors"
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// The exit codes of the agent's commands, besides Envoy's own.
const (
	exitFailed    = 1
	exitUsage     = 2
	exitNoEnvoy   = 127
	exitCannotRun = 126 // `run`: as shells say of a program that is there
	exitNoProgram = 127 // `run`: as shells say of a program that is not
	exitNotYet    = 255 // `wait` gave up, as Istio's does
)

// usageError says that the command line or the configuration is wrong, so that trying again changes nothing.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// codedError is an error with an exit code of its own.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// ExitCode is the code that a process should end with after one of the agent's commands returned the error: 0 for none,
// Envoy's own (128 and the signal's number if a signal ended it) when Envoy ended, 127 when there is no Envoy to run, 2
// for wrong flags or configuration, and 1 for what else goes wrong.
func ExitCode(err error) int {
	var (
		ended    *EnvoyEndedError
		coded    codedError
		usage    usageError
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
	case errors.As(err, &usage):
		return exitUsage
	}
	return exitFailed
}
