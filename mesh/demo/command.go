package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// options are what the flags of `pilotfish demo` say.
type options struct {
	port       uint16 // 0: as in the topology
	dir, write string
	envoyPath  string
	runtimeDir string
	output     string
	check      bool
	verbose    bool
	logs       string
	capture    mesh.CaptureFlags
}

// UsageError says that the command line is wrong.
type UsageError struct{ error }

// Unwrap gives what is wrong with it.
func (e UsageError) Unwrap() error { return e.error }

// NewCommand is `pilotfish demo`.
func NewCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Bring up a book shop as a mesh on this machine, to look at or to check",
		Long: `Bring up a book shop as a mesh on this machine: a gateway and services in several versions, each a process with a
sidecar that owns an Envoy, under configuration that is ordinary Istio YAML.

With --check, try out what the mesh promises by real requests, print a table of what was seen, and end with status 0
when every promise was kept, 1 when one was not or the mesh could not be started, and 2 for wrong flags.`,
		Example: `  pilotfish demo
  pilotfish demo --check
  pilotfish demo --write shop && pilotfish demo --dir shop`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), mesh.EndSignals()...)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the program the hard way
			return o.run(ctx, c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.Uint16Var(&o.port, "port", 0, "port of 127.0.0.1 at which the shop is found (default: 8080, as in the topology; with --check, any free one)")
	f.StringVar(&o.dir, "dir", "", "use the files in this folder (see --write) in place of the example as it comes")
	f.StringVar(&o.write, "write", "", "write the example's files into this folder, and do no more")
	f.StringVar(&o.envoyPath, "envoy-path", "", "Envoy to use (default: ENVOY_PATH, the project's cache, PATH, in that order)")
	f.StringVar(&o.runtimeDir, "runtime-dir", "", "folder in which running meshes keep their files (default: as `pilotfish up`)")
	f.BoolVar(&o.check, "check", false, "check what the mesh promises, unattended, and say what was seen")
	o.capture.Register(f)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show all that sidecars and the control plane log, not only warnings")
	f.StringVarP(&o.output, "output", "o", "", "with --check: print the result as json")
	f.StringVar(&o.logs, "logs", "", "with --check: keep the output of all processes in this folder, whatever comes of it (default: only of a failure)")
	c.MarkFlagsMutuallyExclusive("dir", "write")
	c.MarkFlagsMutuallyExclusive("check", "write")
	c.MarkFlagsMutuallyExclusive("check", "dir")
	return c
}

func (o options) run(ctx context.Context, out io.Writer) error {
	switch {
	case o.output != "" && o.output != "json":
		return UsageError{fmt.Errorf("--output %q is not known: use json, or leave it out for text", o.output)}
	case (o.output != "" || o.logs != "") && !o.check:
		return UsageError{errors.New("--output and --logs go with --check: the demo itself is for people")}
	case o.write != "":
		return o.writeOut(out)
	}
	if err := o.capture.Elsewhere(); err != nil {
		return UsageError{err}
	}
	if o.check {
		return o.runCheck(ctx, out)
	}
	return o.show(ctx, out)
}

func (o options) writeOut(out io.Writer) error {
	if err := writeExample(o.write); err != nil {
		return fmt.Errorf("writing the example: %w", err)
	}
	fmt.Fprintf(out, "The book shop's files are in %s.\nBring it up with: pilotfish up -f %s\n", o.write, shellWord(filepath.Join(o.write, topologyFile)))
	return nil
}
