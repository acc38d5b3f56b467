package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// whichMesh contains the flags that select one of the running meshes.
type whichMesh struct {
	name       string
	file       string
	runtimeDir string
}

func (w *whichMesh) flags(c *cobra.Command) {
	c.Flags().StringVar(&w.name, "name", "", "name of the mesh; required if several meshes are running")
	c.Flags().StringVarP(&w.file, "file", "f", "", "topology file of the mesh, instead of --name")
	runtimeDirFlag(c, &w.runtimeDir)
	_ = c.RegisterFlagCompletionFunc("name", w.completeMeshes) // the flag exists
	usage.SetExclusive(c, "name", "file")
}

// completeWorkloads returns the names of workloads and instances, for shell completion of the first argument.
func (w *whichMesh) completeWorkloads(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, i := range w.instances(c.Context()) {
		names = append(names, i.Workload, i.Name)
	}
	slices.Sort(names)
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// completeInstances returns the names of instances, for shell completion of the first argument. The other arguments are a
// command, for which the shell suggests files.
func (w *whichMesh) completeInstances(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var names []string
	for _, i := range w.instances(c.Context()) {
		names = append(names, i.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// instances returns the instances of the selected mesh, or nil if the mesh is not running or does not respond.
func (w *whichMesh) instances(ctx context.Context) []mesh.InstanceStatus {
	client, err := w.connect()
	if err != nil {
		return nil
	}
	defer client.Close()
	s, err := client.Status(ctx)
	if err != nil {
		return nil
	}
	return s.Instances
}

// completeMeshes returns the names of the running meshes, for shell completion.
func (w *whichMesh) completeMeshes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return mesh.RunningMeshes(w.directory()), cobra.ShellCompDirectiveNoFileComp
}

func (w *whichMesh) directory() string {
	if w.runtimeDir != "" {
		return w.runtimeDir
	}
	return mesh.DefaultRuntimeDir(os.Getenv("XDG_RUNTIME_DIR"), os.Getuid())
}

func (w *whichMesh) connect() (*mesh.Client, error) {
	if w.file != "" {
		t, err := topology.Load(w.file)
		if err != nil {
			return nil, err
		}
		w.name = t.Name
	}
	return mesh.Connect(w.directory(), w.name)
}

func newDownCommand() *cobra.Command {
	var which whichMesh
	var timeout time.Duration
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop a running mesh, and wait until it has stopped",
		Long: `Stop a running mesh, and wait until it has stopped.

Exit codes:
  0  the mesh has stopped
  1  it has not stopped within --timeout
  2  no mesh is running, or wrong flags`,
		Args: usage.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := which.connect()
			if err != nil {
				return err
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			start := time.Now()
			if err := client.Stop(ctx); err != nil {
				return err
			}
			fmt.Fprintf(c.OutOrStdout(), "mesh %s is down after %s\n", client.Name, time.Since(start).Round(10*time.Millisecond))
			return nil
		},
	}
	which.flags(c)
	c.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "maximum time to wait until the mesh has stopped")
	return c
}

func newRestartCommand() *cobra.Command {
	var which whichMesh
	c := &cobra.Command{
		Use:   "restart WORKLOAD",
		Short: "Restart the application of a workload or of one instance",
		Long: `Restart the application of a workload, or of one of its instances.

Exit codes:
  0  the application restarts
  1  the workload does not exist
  2  no mesh is running, or wrong flags`,
		Args:              usage.Args("WORKLOAD"),
		ValidArgsFunction: which.completeWorkloads,
		RunE: func(c *cobra.Command, args []string) error {
			client, err := which.connect()
			if err != nil {
				return err
			}
			defer client.Close()
			return client.Restart(c.Context(), args[0])
		},
	}
	which.flags(c)
	return c
}

func newExecCommand() *cobra.Command {
	var which whichMesh
	c := &cobra.Command{
		Use:   "exec WORKLOAD [--] COMMAND [ARGUMENT]...",
		Short: "Run a command in the environment of a workload's application",
		Long: `Run a command in the environment of a workload's application, so that the
command calls services as the workload does. The command has the application's
environment variables and, where traffic is captured, its network and host
names. For a workload with replicas, name one instance.

Exit codes:
  2      no mesh is running, or wrong flags
  125    the workload does not exist, or its network cannot be joined now
  126    the command cannot be executed
  127    the command was not found
  other  the exit code of the command`,
		Example: `  pilotfish exec page-v1 -- curl http://reviews:9080/reviews/1
  pilotfish exec page-v1 sh`,
		Args:              usage.Args("WORKLOAD", "COMMAND", "[ARGUMENT]..."),
		ValidArgsFunction: which.completeInstances,
		RunE: func(c *cobra.Command, args []string) error {
			name, command := args[0], args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usageError{errors.New("name the command to run after the workload: `pilotfish exec WORKLOAD -- COMMAND`")}
			}
			client, err := which.connect()
			if err != nil {
				return err
			}
			return client.Exec(c.Context(), name, command, os.Environ())
		},
	}
	which.flags(c)
	c.Flags().SetInterspersed(false)
	return c
}

func newStatusCommand() *cobra.Command {
	var which whichMesh
	var format string
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the status of a running mesh",
		Long: `Show the status of each workload of a running mesh: its processes; whether it is
ready, and if not, why; its certificate; whether its configuration is in sync or
was rejected; and the requests per second that it serves. The output also
contains the documents that the control plane refused.

Exit codes:
  0  all workloads are ready
  1  a workload is not ready
  2  no mesh is running, or wrong flags`,
		Args: usage.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if format != "" && format != "json" && format != "yaml" {
				return usageError{fmt.Errorf("--output %q: use json or yaml, or omit the flag for a table", format)}
			}
			client, err := which.connect()
			if err != nil {
				return err
			}
			defer client.Close()
			s, err := client.Status(c.Context())
			if err != nil {
				return err
			}
			if err := printStatus(c.OutOrStdout(), s, format); err != nil {
				return err
			}
			if !s.Ready {
				return errQuiet
			}
			return nil
		},
	}
	which.flags(c)
	c.Flags().StringVarP(&format, "output", "o", "", "output format: json or yaml (default: a table)")
	usage.SetCompletions(c, "output", "json", "yaml")
	return c
}

func printStatus(out io.Writer, s mesh.Status, format string) error {
	if format == "" {
		return s.WriteTable(out, time.Now())
	}
	return printAs(out, s, format)
}

// printAs writes v as JSON or, if format is "yaml", as YAML with the same field names.
func printAs(out io.Writer, v any, format string) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		var plain any
		if err := json.Unmarshal(data, &plain); err != nil {
			return err
		}
		encoder := yaml.NewEncoder(out)
		encoder.SetIndent(2)
		return encoder.Encode(plain)
	}
	_, err = fmt.Fprintln(out, string(data))
	return err
}
