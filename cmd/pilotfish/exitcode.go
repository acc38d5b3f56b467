package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
)

// The exit codes of the commands on meshes; exec has those of mesh.ExecError too, and the agent's commands have their own.
const (
	exitNotReady = 1 // status: not all is ready; other commands: what was asked for failed
	exitUsage    = 2 // wrong flags, a wrong topology file, or no mesh to talk to
)

// usageError says that the command line is wrong.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errQuiet ends the process with exitNotReady; what there is to say was said already.
var errQuiet = errors.New("not ready")

// exitCode is that of an error of the command: the agent's commands keep the agent's contract, all others have the codes
// above.
func exitCode(c *cobra.Command, err error) int {
	var usage usageError
	var demoUsage demo.UsageError
	var invalid *mesh.InvalidError
	var absent *mesh.NotRunningError
	var notRun *mesh.ExecError
	var elsewhere mesh.RanElsewhere
	switch {
	case err == nil:
		return 0
	case errors.As(err, &elsewhere):
		return int(elsewhere)
	case errors.As(err, &usage), errors.As(err, &demoUsage), errors.As(err, &invalid), errors.As(err, &absent):
		return exitUsage
	case errors.As(err, &notRun):
		return notRun.Status
	case ofAgent(c):
		return agent.ExitCode(err)
	}
	return exitNotReady
}

// ofAgent says whether the command is one of the agent's.
func ofAgent(c *cobra.Command) bool {
	for ; c != nil; c = c.Parent() {
		if c.GroupID == groupAgent {
			return true
		}
	}
	return false
}
