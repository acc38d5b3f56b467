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
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
	"github.com/pilotfish-mesh/pilotfish/version"
)

func main() {
	umask.ClearOwnerBits()
	root := newRoot()
	root.SetOut(termtext.NewWriter(os.Stdout))
	root.SetErr(termtext.NewWriter(os.Stderr))
	parsed := false
	root.PersistentPreRun = func(*cobra.Command, []string) { parsed = true }
	command, err := root.ExecuteC()
	if err != nil && !parsed {
		err = usageError{err}
	}
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
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := refuseUnknown(c, c.Flags().Args()); unknown != nil { // report the misspelt subcommand, not its flag
			return unknown
		}
		return usageError{fmt.Errorf("%w (see `%s --help`)", err, c.CommandPath())}
	})
	root.AddGroup(
		&cobra.Group{ID: groupMesh, Title: "A mesh on this machine:"},
		&cobra.Group{ID: groupControl, Title: "Control plane:"},
		&cobra.Group{ID: groupAgent, Title: "Agent, which runs one proxy:"},
	)
	addGroup(root, groupMesh, newUpCommand(), newDownCommand(), newStatusCommand(), newRestartCommand(), newExecCommand(), demo.NewCommand(), newEnvoyCommand())
	addGroup(root, groupControl, controlplane.NewCommand(), controlplane.NewTokenCommand(), controlplane.NewCACommand(), newAnalyzeCommand(), newDiffCommand(),
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
	for _, c := range root.Commands() {
		if c.HasSubCommands() && !c.Runnable() { // by default, cobra prints the help for an unknown subcommand and succeeds
			c.Args = refuseUnknown
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	helptext.WrapFlags(root)
	return root
}

// refuseUnknown returns an error if args names an unknown subcommand of c, a command that only groups subcommands.
func refuseUnknown(c *cobra.Command, args []string) error {
	if len(args) == 0 || !c.HasSubCommands() || c.Args == nil {
		return nil
	}
	return usageError{fmt.Errorf("unknown command %q for %q (see `%s --help`)", args[0], c.CommandPath(), c.CommandPath())}
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
