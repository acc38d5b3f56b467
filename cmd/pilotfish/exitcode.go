package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Exit codes of the commands for meshes. exec additionally has those of mesh.ExecError, and the agent's commands have
// their own.
const (
	exitNotReady = 1 // status: an instance is not ready; other commands: failure
	exitUsage    = 2 // wrong flags, invalid topology file, or no running mesh
)

// usageError reports a wrong command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errQuiet ends the process with exitNotReady and without a message, because the output is already complete.
var errQuiet = errors.New("not ready")

// exitCode returns the exit code for a command's error. The agent's commands have the agent's exit codes.
func exitCode(c *cobra.Command, err error) int {
	var usage usageError
	var demoUsage demo.UsageError
	var invalid *topology.InvalidError
	var absent *mesh.NotRunningError
	var notRun *mesh.ExecError
	var elsewhere mesh.ReexecError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &elsewhere):
		return int(elsewhere)
	case errors.As(err, &usage), errors.As(err, &demoUsage), errors.As(err, &invalid), errors.As(err, &absent):
		return exitUsage
	case errors.As(err, &notRun):
		return notRun.Status
	case isAgentCommand(c):
		return command.ExitCode(err)
	}
	return exitNotReady
}

// isAgentCommand reports whether the command is one of the agent's.
func isAgentCommand(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if c.GroupID == groupAgent {
			return true
		}
	}
	return false
}
