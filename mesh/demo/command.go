package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// options are the flags of `pilotfish demo`.
type options struct {
	port       uint16 // 0 selects the port in the topology file
	dir, write string
	envoyPath  string
	runtimeDir string
	output     string
	check      bool
	verbose    bool
	logs       string
	capture    mesh.CaptureFlags
}

// UsageError reports an invalid command line, which the user must correct.
type UsageError struct{ error }

// Unwrap returns the cause.
func (e UsageError) Unwrap() error { return e.error }

// NewCommand returns the command `pilotfish demo`.
func NewCommand() *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "demo",
		Short: "Run or check an example mesh (a book shop) on this machine",
		Long: `Run a book shop as an example mesh on this machine, configured with Istio YAML.
It consists of a gateway and several services, some of them in several versions.
Each service is a process with a sidecar that runs an Envoy.

With --check, check the mesh with real requests, print a table of the results,
and exit.

Exit codes:
  0  the book shop was stopped; with --check: all checks passed
  1  the mesh could not be started; with --check: a check failed
  2  wrong flags`,
		Example: `  pilotfish demo
  pilotfish demo --check
  pilotfish demo --write shop && pilotfish demo --dir shop`,
		Args:          usage.Args(),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(c.Context(), mesh.EndSignals()...)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal kills the program
			return o.run(ctx, c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.Uint16Var(&o.port, "port", 0, "port on 127.0.0.1 at which the shop is published (default: the port in the topology file, 8080; with --check, any free port)")
	f.StringVar(&o.dir, "dir", "", "use the files in this directory, which --write created, instead of the built-in example")
	f.StringVar(&o.write, "write", "", "write the files of the built-in example into this directory, and exit")
	f.StringVar(&o.envoyPath, "envoy-path", "", "path of the Envoy binary (default: ENVOY_PATH, else pilotfish's cache, else envoy in PATH)")
	f.StringVar(&o.runtimeDir, "runtime-dir", "", "directory for the files of running meshes (default: the same directory that pilotfish up uses)")
	f.BoolVar(&o.check, "check", false, "check the mesh with real requests, print a table of the results, and exit")
	o.capture.Register(f)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show all log lines of sidecars and the control plane, not only warnings")
	f.StringVarP(&o.output, "output", "o", "", "with --check: output format of the results; the only value is json (default: a table)")
	usage.SetCompletions(c, "output", "json")
	f.StringVar(&o.logs, "logs", "", "with --check: write the output of all processes into this directory (default: after a failed check, into a temporary directory)")
	usage.SetExclusive(c, "dir", "write")
	usage.SetExclusive(c, "check", "write")
	usage.SetExclusive(c, "check", "dir")
	return c
}

func (o options) run(ctx context.Context, out io.Writer) error {
	switch {
	case o.output != "" && o.output != "json":
		return UsageError{fmt.Errorf("--output %q: use json, or omit the flag for a table", o.output)}
	case (o.output != "" || o.logs != "") && !o.check:
		return UsageError{errors.New("--output and --logs require --check")}
	case o.write != "":
		return o.writeOut(out)
	}
	if err := o.capture.Reexec(); err != nil {
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
	fmt.Fprintf(out, "The book shop's files are in %s.\nStart the book shop with: pilotfish up -f %s\n", o.write, shellWord(filepath.Join(o.write, topologyFile)))
	return nil
}
