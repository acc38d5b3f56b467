package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Exit codes of the commands for meshes and the control plane. exec also has the exit codes of mesh.ExecError. The agent's
// commands have the exit codes of package agent/command.
const (
	exitNotReady = 1              // status: an instance is not ready; other commands: failure
	exitUsage    = usage.ExitCode // wrong flags, invalid topology file, or no running mesh
)

// usageError is an error that the user must correct in the command line. Its exit code is exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errQuiet is returned by commands whose output already reports the failure. The process exits with exitNotReady, and
// prints no error message.
var errQuiet = errors.New("not ready")

// exitCode returns the exit code for the error of command c.
func exitCode(c *cobra.Command, err error) int {
	var wrong usageError
	var coded interface{ ProcessExitCode() int } // of package usage
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
	case errors.As(err, &wrong), errors.As(err, &demoUsage), errors.As(err, &invalid), errors.As(err, &absent):
		return exitUsage
	case errors.As(err, &notRun):
		return notRun.Status
	case isAgentCommand(c):
		return command.ExitCode(err)
	case errors.As(err, &coded):
		return coded.ProcessExitCode()
	}
	return exitNotReady
}

// isAgentCommand reports whether c is one of the agent's commands.
func isAgentCommand(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if c.GroupID == groupAgent {
			return true
		}
	}
	return false
}
