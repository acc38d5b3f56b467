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

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/analysis"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/usage"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/console"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
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
	check      bool
	onInvalid  config.OnInvalidPolicy
	capture    mesh.CaptureFlags
	allowUnix  []string
	detached   bool // this is the background process
}

func newUpCommand() *cobra.Command {
	var o upOptions
	c := &cobra.Command{
		Use:   "up -f FILE",
		Short: "Start the mesh that a topology file describes",
		Long: `Start the mesh that a topology file describes: a control plane, and each
workload with a sidecar that runs an Envoy. The control plane watches the
configuration files: a change takes effect when the file is saved. Ctrl-C or
'pilotfish down' stops all processes and removes their files; a second Ctrl-C
kills the processes at once.

With --detach, the command exits once all workloads are ready, or one cannot
become ready. The mesh continues to run in the background.

With --check, the command starts nothing. It checks the topology file and all
documents as 'pilotfish analyze -f FILE' does.

Exit codes:
  0  the mesh was stopped; with --detach: all workloads are ready
  1  the mesh could not be started; with --detach: a workload cannot become
     ready; with --check: a document is refused
  2  the topology file or the flags are wrong`,
		Example: `  pilotfish up -f mesh.yaml
  pilotfish up -f mesh.yaml --check
  pilotfish up -f mesh.yaml --detach && pilotfish status`,
		Args: usage.Args(),
		RunE: func(c *cobra.Command, _ []string) error {
			if o.check {
				return o.checkDocuments(c.OutOrStdout())
			}
			if err := o.capture.Reexec(); err != nil {
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
	f.StringVar(&o.name, "name", "", "name of the mesh; different names allow several meshes from one file (default: the name in the file)")
	f.StringVar(&o.envoyPath, "envoy-path", "", "path of the Envoy binary (default: ENVOY_PATH, else pilotfish's cache, else envoy in PATH)")
	f.StringVar(&o.stateDir, "state-dir", "", "store the control plane's root certificate and keys in this directory, and use them again in the next run (default: create new ones in each run)")
	runtimeDirFlag(c, &o.runtimeDir)
	o.capture.Register(f)
	controlplane.UnixEndpointFlag(f, &o.allowUnix)
	f.BoolVarP(&o.verbose, "verbose", "v", false, "show all log lines of sidecars and the control plane, not only warnings")
	f.BoolVarP(&o.detach, "detach", "d", false, "return once the workloads are ready; the mesh continues in the background")
	f.BoolVar(&o.check, "check", false, "check the topology file and its documents, and start nothing")
	f.Var(&o.onInvalid, "on-invalid-policy", "effect of an invalid AuthorizationPolicy or PeerAuthentication that never had a valid version: deny all traffic to its workloads, or ignore the policy")
	usage.SetExclusive(c, "check", "detach")
	usage.SetCompletions(c, "on-invalid-policy", string(config.DenyInvalid), string(config.IgnoreInvalid))
	f.BoolVar(&o.detached, "detached", false, "")
	_ = f.MarkHidden("detached")
	return c
}

func runtimeDirFlag(c *cobra.Command, into *string) {
	c.Flags().StringVar(into, "runtime-dir", "", "directory for the files of running meshes (default: $XDG_RUNTIME_DIR/pilotfish, or /tmp/pilotfish-UID)")
}

// load reads the topology.
func (o upOptions) load() (*topology.Topology, error) {
	t, err := topology.Load(o.file)
	var unreadable *fs.PathError
	if errors.As(err, &unreadable) {
		return nil, usageError{fmt.Errorf("%w: specify a topology file with -f, or create an example with `pilotfish demo --write DIR`", err)}
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

func (o upOptions) newMesh(t *topology.Topology) (*mesh.Mesh, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the running executable: %w", err)
	}
	network, note, err := o.capture.Network()
	if err != nil {
		return nil, usageError{err}
	}
	if note != "" && !o.detached { // if detached, the foreground process has already printed the note
		fmt.Fprintln(os.Stderr, note)
	}
	return mesh.New(mesh.Config{
		Topology: t, Network: network, Environ: os.Environ(), RuntimeDir: o.runtimeDir, StateDir: o.stateDir, EnvoyPath: o.envoyPath,
		GuardCommand: []string{self, "guard"}, OnInvalidPolicy: o.onInvalid, AllowUnix: o.allowUnix,
	})
}

// checkDocuments prints the problems of the topology's documents. It returns an error if a document is refused.
func (o upOptions) checkDocuments(out io.Writer) error {
	t, err := o.load()
	if err != nil {
		return err
	}
	cfg := topologyDocuments(t, registry.EndpointPolicy{AllowUnix: o.allowUnix})
	cfg.OnInvalidPolicy = o.onInvalid
	report, err := analysis.Analyze(cfg)
	if err != nil {
		return usageError{err}
	}
	refused := report.AtLeast(config.Error)
	report.FilterSeverity(config.Warning)
	if err := writeReport(out, report); err != nil {
		return err
	}
	if refused {
		return errQuiet
	}
	return nil
}

// run runs the mesh in this process, and returns after the mesh has stopped.
func (o upOptions) run(ctx context.Context, out io.Writer) error {
	t, err := o.load()
	if err != nil {
		return err
	}
	m, err := o.newMesh(t)
	if err != nil {
		return err
	}
	output := &output{terminal: termtext.Raw(out)} // the printer already escapes control characters
	if o.detached {
		output.detach(m)
	}
	printer := console.New(output, terminal.Detect(out).Colours, t.InstanceNames()...)
	printer.Verbose = o.verbose
	events := m.Events()
	fmt.Fprintf(output, "Starting mesh %s: %d workload instances\n", t.Name, len(t.InstanceNames()))
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
	fmt.Fprintf(output, "Mesh %s is down; none of its processes and files remain.\n", t.Name)
	return nil
}

// waitReady waits until all workloads are ready and the welcome message is printed.
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

// untilSignal stops the mesh at the first of mesh.EndSignals, and kills its processes at the second.
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

// welcome returns the message that is printed when the mesh is ready: published addresses and useful commands.
func welcome(t *topology.Topology, p *console.Printer, took time.Duration) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\nThe mesh is up after %s.", console.Duration(took))
	for _, w := range t.Workloads {
		for _, port := range w.Ports {
			if port.Publish.IsValid() {
				fmt.Fprintf(&b, "  %s: %s", w.Name, p.Bold(scheme(port.Protocol)+port.Publish.String()))
			}
		}
	}
	fmt.Fprintf(&b, "\nShow its status: pilotfish status --name %s.  Ctrl-C, or pilotfish down --name %s, stops the mesh.\n\n", t.Name, t.Name)
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
