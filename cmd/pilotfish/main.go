// Command pilotfish runs a service mesh on one machine, and has all that the agent and the control plane have.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/agent"
	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/internal/umask"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo"
	"github.com/pilotfish-mesh/pilotfish/version"
)

func main() {
	umask.SpareOwner()
	root := newRoot()
	understood := false
	root.PersistentPreRun = func(*cobra.Command, []string) { understood = true }
	command, err := root.ExecuteC()
	if err != nil && !understood {
		err = usageError{err}
	}
	if err != nil && !errors.Is(err, errQuiet) && !errors.As(err, new(mesh.RanElsewhere)) {
		fmt.Fprintln(os.Stderr, "pilotfish:", err)
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
		Short: "A service mesh on stock Envoy: on this machine, or beside every pod",
		Long: `pilotfish runs a whole service mesh on this machine, from ordinary Istio and Kubernetes YAML, and is the agent and
the control plane of one.`,
		Example: `  pilotfish demo                 # bring up a book shop, and look around
  pilotfish up -f mesh.yaml      # bring up a mesh of your own
  pilotfish status               # see how it is`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if unknown := refuseUnknown(c, c.Flags().Args()); unknown != nil { // the flag may well be one of what was meant
			return unknown
		}
		return usageError{fmt.Errorf("%w (`%s --help` lists what there is)", err, c.CommandPath())}
	})
	root.AddGroup(
		&cobra.Group{ID: groupMesh, Title: "A mesh on this machine:"},
		&cobra.Group{ID: groupControl, Title: "Control plane:"},
		&cobra.Group{ID: groupAgent, Title: "Agent of one proxy:"},
	)
	addGroup(root, groupMesh, newUpCommand(), newDownCommand(), newStatusCommand(), newRestartCommand(), newExecCommand(), demo.NewCommand(), newEnvoyCommand())
	addGroup(root, groupControl, controlplane.NewCommand(), controlplane.NewTokenCommand(), controlplane.NewCACommand(), newAnalyzeCommand(), newDiffCommand(),
		newProxyStatusCommand(), newProxyConfigCommand(), newDescribeCommand())
	for _, c := range agent.Commands() {
		if c.Name() == "version" {
			root.AddCommand(c)
			continue
		}
		addGroup(root, groupAgent, c)
	}
	bookshop := demo.NewBookshopCommand()
	bookshop.Hidden = true
	root.AddCommand(bookshop, mesh.NewGuardCommand())
	for _, c := range root.Commands() {
		if c.HasSubCommands() && !c.Runnable() { // by itself it would answer whatever it is given with its help, as if all were well
			c.Args = refuseUnknown
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

// refuseUnknown refuses what is none of the commands of one that can do nothing by itself.
func refuseUnknown(c *cobra.Command, args []string) error {
	if len(args) == 0 || !c.HasSubCommands() || c.Args == nil {
		return nil
	}
	return usageError{fmt.Errorf("unknown command %q for %q (`%s --help` lists what there is)", args[0], c.CommandPath(), c.CommandPath())}
}

func addGroup(root *cobra.Command, group string, commands ...*cobra.Command) {
	for _, c := range commands {
		c.GroupID = group
		root.AddCommand(c)
	}
}
