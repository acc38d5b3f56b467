// Command pilotfish-agent is the entrypoint of a sidecar or gateway: it runs Envoy as a proxy of the mesh.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
)

func main() {
	root := &cobra.Command{
		Use:           "pilotfish-agent",
		Short:         "The agent that makes a mesh proxy of Envoy",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(agent.Commands()...)
	err := root.Execute()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pilotfish-agent:", err)
	}
	os.Exit(agent.ExitCode(err))
}
