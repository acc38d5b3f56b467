// Command pilotfish runs a service mesh on one machine. It also contains the commands of the agent and the control
// plane.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent/command"
	"github.com/pilotfish-mesh/pilotfish/agent/redirect"
	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/helptext"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
	"github.com/pilotfish-mesh/pilotfish/version"
)

func main() {
	umask.ClearOwnerBits()
	root := newRoot()
	root.SetOut(termtext.NewWriter(os.Stdout))
	root.SetErr(termtext.NewWriter(os.Stderr))
	command, err := usage.Execute(root)
	if err != nil && !errors.Is(err, errQuiet) && !errors.As(err, new(mesh.ReexecError)) {
		fmt.Fprintln(root.ErrOrStderr(), "pilotfish:", err)
	}
	os.Exit(exitCode(command, err))
}

const (
	groupMesh    = "mesh"
	groupControl = "control"
	groupAgent   = "agent"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "pilotfish",
		Short: "Run a service mesh with stock Envoy, on this machine or in Kubernetes",
		Long: `Run a service mesh on this machine from Istio and Kubernetes YAML. The program
also contains the control plane, and the agent that runs one proxy.`,
		Example: `  pilotfish demo                 # start an example mesh: a book shop
  pilotfish up -f mesh.yaml      # start your own mesh
  pilotfish status               # show its status`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: groupMesh, Title: "A mesh on this machine:"},
		&cobra.Group{ID: groupControl, Title: "Control plane:"},
		&cobra.Group{ID: groupAgent, Title: "Agent, which runs one proxy:"},
	)
	addGroup(root, groupMesh, newUpCommand(), newDownCommand(), newStatusCommand(), newRestartCommand(), newExecCommand(), demo.NewCommand(), newEnvoyCommand())
	addGroup(root, groupControl, controlplane.NewCommand(newKubernetesExtension()), controlplane.NewTokenCommand(), controlplane.NewCACommand(), newAnalyzeCommand(), newDiffCommand(),
		newProxyStatusCommand(), newProxyConfigCommand(), newDescribeCommand())
	for _, c := range append(command.Commands(), newRedirectionCommand()) {
		if c.Name() == "version" {
			root.AddCommand(c)
			continue
		}
		addGroup(root, groupAgent, c)
	}
	bookshop := demo.NewBookshopCommand()
	bookshop.Hidden = true
	root.AddCommand(bookshop, mesh.NewGuardCommand(), newCollateralCommand())
	usage.Install(root)
	helptext.WrapFlags(root)
	return root
}

func addGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}

func newRedirectionCommand() *cobra.Command {
	return redirect.Command(redirect.Process{Env: os.LookupEnv})
}
