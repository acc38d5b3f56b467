package main

import (
	"errors"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// The exit codes of the commands on meshes; the agent's commands have codes of their own.
const (
	exitNotReady = 1 // status: not all is ready; other commands: what was asked for failed
	exitUsage    = 2 // wrong flags, a wrong topology file, or no mesh to talk to
)

// usageError says that the command line is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// failedError is a failure of a command on meshes: the agent's exit codes do not apply, whatever is in it.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// errQuiet ends the process with exitNotReady; what there is to say was said already.
var errQuiet = errors.New("not ready")

func exitCode(err error) int {
	var usage usageError
	var invalid *mesh.InvalidError
	var absent *mesh.NotRunningError
	var failed failedError
	switch {
	case errors.As(err, &usage), errors.As(err, &invalid), errors.As(err, &absent):
		return exitUsage
	case errors.Is(err, errQuiet), errors.As(err, &failed):
		return exitNotReady
	}
	return agent.ExitCode(err)
}
