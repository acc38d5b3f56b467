package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/console"
)

// upOptions are the flags of `pilotfish up`.
type upOptions struct {
	file       string
	name       string
	envoyPath  string
	stateDir   string
	runtimeDir string
	verbose    bool
	detach     bool
	capture    mesh.CaptureFlags
	detached   bool // this is the process that runs on in the background
}

func newUpCommand() *cobra.Command {
	var o upOptions
	c := &cobra.Command{
		Use:   "up -f FILE",
		Short: "Bring up the mesh that a topology file describes",
		Long: `Bring up the mesh that a topology file describes: a control plane, and for each workload its processes with a
sidecar that owns an Envoy. Ctrl-C (or 'pilotfish down') stops it all and leaves nothing behind; a second Ctrl-C does so
at once. The configuration is watched: save a file, and what changed is in force.

It ends with status 0 after an ordered stop, 1 when the mesh could not be started, and 2 when the topology file or the
flags are wrong. With --detach it returns once all workloads are ready (status 0) or one will not be (status 1), and the
mesh runs on.`,
		Example: `  pilotfish up -f mesh.yaml
  pilotfish up -f mesh.yaml --detach && pilotfish status`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := o.capture.Elsewhere(); err != nil {
				return usageError{err}
			}
			if o.detach {
				return o.runDetached(c)
			}
			return o.run(c.Context(), c.OutOrStdout())
		},
	}
	f := c.Flags()
	f.StringVarP(&o.file, "file", "f", "mesh.yaml", "topology file (docs/topology.md describes it)")
	f.StringVar(&o.name, "name", "", "run it under another name than the file's, beside one that runs already")
	f.StringVar(&o.envoyPath, "envoy-path", "", "Envoy to use (default: ENVOY_PATH, the project's cache, PATH, in that order)")
	f.StringVar(&o.stateDir, "state-dir", "", "keep the control plane's state (its root certificate) in this folder, from run to run")
	runtimeDirFlag(c, &o.runtimeDir)
	o.capture.Register(f)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show all that sidecars and the control plane log, not only warnings")
	f.BoolVarP(&o.detach, "detach", "d", false, "return once the workloads are ready; the mesh runs on")
	f.BoolVar(&o.detached, "detached", false, "")
	_ = f.MarkHidden("detached")
	return c
}

func runtimeDirFlag(c *cobra.Command, into *string) {
	c.Flags().StringVar(into, "runtime-dir", "", "folder of running meshes (default: $XDG_RUNTIME_DIR/pilotfish, or /tmp/pilotfish-UID)")
}

// load reads the topology.
func (o upOptions) load() (*mesh.Topology, error) {
	t, err := mesh.Load(o.file)
	var unreadable *fs.PathError
	if errors.As(err, &unreadable) {
		return nil, usageError{fmt.Errorf("%w: name the topology file with -f, or see `pilotfish demo --write DIR` for one to begin with", err)}
	}
	if err != nil {
		return nil, err
	}
	if o.name != "" {
		if err := t.Rename(o.name); err != nil {
			return nil, usageError{fmt.Errorf("--name: %w", err)}
		}
	}
	return t, nil
}

func (o upOptions) newMesh(t *mesh.Topology) (*mesh.Mesh, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the running executable: %w", err)
	}
	network, note, err := o.capture.Network()
	if err != nil {
		return nil, usageError{err}
	}
	if note != "" && !o.detached { // it was told by the process in the foreground
		fmt.Fprintln(os.Stderr, note)
	}
	return mesh.New(mesh.Config{
		Topology: t, Network: network, Environ: os.Environ(), RuntimeDir: o.runtimeDir, StateDir: o.stateDir, EnvoyPath: o.envoyPath,
		GuardCommand: []string{self, "guard"},
	})
}

// run brings the mesh up in this process, and returns when it has ended.
func (o upOptions) run(ctx context.Context, out io.Writer) error {
	t, err := o.load()
	if err != nil {
		return err
	}
	m, err := o.newMesh(t)
	if err != nil {
		return err
	}
	output := &output{terminal: out}
	if o.detached {
		output.detach(m)
	}
	printer := console.New(output, console.IsTerminal(out) && os.Getenv("NO_COLOR") == "", t.InstanceNames()...)
	printer.Verbose = o.verbose
	events := m.Events()
	fmt.Fprintf(output, "Bringing up mesh %s: %d workload instances\n", t.Name, len(t.InstanceNames()))
	printed, welcomed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(printed)
		printer.Follow(events, nil, func(e mesh.Event) {
			fmt.Fprint(output, welcome(t, printer, e.Took))
			close(welcomed)
		})
	}()
	if o.detached {
		go func() { output.report(waitReady(ctx, m, welcomed)) }()
	}
	ctx, stop := untilSignal(ctx, m)
	defer stop()
	err = m.Run(ctx)
	<-printed
	if err != nil {
		return err
	}
	fmt.Fprintf(output, "Mesh %s is down; nothing is left behind.\n", t.Name)
	return nil
}

// waitReady waits until all is ready, and until that was said.
func waitReady(ctx context.Context, m *mesh.Mesh, welcomed <-chan struct{}) error {
	if err := m.WaitReady(ctx); err != nil {
		return err
	}
	select {
	case <-welcomed:
		return nil
	case <-ctx.Done():
		return mesh.ErrEnded
	}
}

// untilSignal ends the context at the first signal that asks for the end, and kills at the second.
func untilSignal(ctx context.Context, m *mesh.Mesh) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, mesh.EndSignals()...)
	go func() {
		defer cancel()
		select {
		case s := <-signals:
			m.Stop(s.String())
		case <-ctx.Done():
			return
		}
		select {
		case <-signals:
			m.Kill()
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel() }
}

// welcome says where the mesh can be reached, and what to do next.
func welcome(t *mesh.Topology, p *console.Printer, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe mesh is up after %s.", console.Duration(took))
	for _, w := range t.Workloads {
		for _, port := range w.Ports {
			if port.Publish.IsValid() {
				fmt.Fprintf(&b, "  %s: %s", w.Name, p.Bold(scheme(port.Protocol)+port.Publish.String()))
			}
		}
	}
	fmt.Fprintf(&b, "\nSee how it is: pilotfish status --name %s.  Ctrl-C, or pilotfish down --name %s, stops it all.\n\n", t.Name, t.Name)
	return b.String()
}

func scheme(protocol string) string {
	switch protocol {
	case "HTTP", "HTTP2", "GRPC", "GRPC-WEB":
		return "http://"
	case "HTTPS", "TLS":
		return "https://"
	}
	return ""
}
