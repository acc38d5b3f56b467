package demo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/mesh"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// shop runs the book shop as a mesh on this machine.
type shop struct {
	*mesh.Mesh
	topology *topology.Topology
	address  netip.AddrPort // published address of the gateway
	folder   string         // temporary directory, which stop removes; empty if the user specified --dir

	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // result of the mesh's Run; set when done is closed
}

// newShop reads the topology and prepares the mesh. It does not start any process.
func newShop(o options) (*shop, error) {
	dir, folder := o.dir, ""
	if dir == "" {
		var err error
		if folder, err = privateExample(); err != nil {
			return nil, err
		}
		dir = folder
	}
	s, err := openShop(o, dir, folder)
	if err != nil {
		if folder != "" {
			os.RemoveAll(folder)
		}
		return nil, err
	}
	s.folder = folder
	return s, nil
}

func openShop(o options, dir, folder string) (*shop, error) {
	topology, err := topology.Load(filepath.Join(dir, topologyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, UsageError{fmt.Errorf("%w: --dir must name a directory that `pilotfish demo --write` created", err)}
	}
	if err != nil {
		return nil, err
	}
	s := &shop{topology: topology, done: make(chan struct{})}
	if s.address, err = publishGateway(topology, o.port); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the running executable: %w", err)
	}
	network, note, err := o.capture.Network()
	if err != nil {
		return nil, UsageError{err}
	}
	if note != "" {
		fmt.Fprintln(os.Stderr, note)
	}
	s.Mesh, err = mesh.New(mesh.Config{
		Topology:     topology,
		Network:      network,
		Environ:      os.Environ(),
		RuntimeDir:   o.runtimeDirectory(),
		EnvoyPath:    o.envoyPath,
		GuardCommand: guardCommand(self, folder),
	})
	return s, err
}

// guardCommand returns the command line of the mesh's guard process. If this process is killed, the guard stops the mesh's
// processes and removes its files, including the temporary directory folder.
func guardCommand(self, folder string) []string {
	if folder == "" {
		return []string{self, "guard"}
	}
	return []string{self, "guard", "--remove", folder}
}

// runtimeDirectory returns the mesh's runtime directory, or "" for the default. Each --check uses a separate directory, so
// that it can run at the same time as a demo. The directory is not in the temporary directory, whose path may be too long
// for unix sockets.
func (o options) runtimeDirectory() string {
	if o.check && o.runtimeDir == "" {
		return fmt.Sprintf("%s-check-%d", mesh.DefaultRuntimeDir(os.Getenv("XDG_RUNTIME_DIR"), os.Getuid()), os.Getpid())
	}
	return o.runtimeDir
}

// publishGateway returns the address at which the gateway is published. If port is not 0, it first sets the port of that
// address in t.
func publishGateway(t *topology.Topology, port uint16) (netip.AddrPort, error) {
	for _, w := range t.Workloads {
		for i := range w.Ports {
			p := &w.Ports[i].Publish
			if !p.IsValid() {
				continue
			}
			if port != 0 {
				*p = netip.AddrPortFrom(p.Addr(), port)
			}
			return *p, nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("%s does not publish a port of a gateway: add `publish: 8080` to a port of the gateway", t.File)
}

// freePort returns a free port below the kernel's default range of ephemeral ports. No outgoing connection can therefore
// use the port before the gateway listens on it.
func freePort() (port uint16, err error) {
	const first, last = 20000, 32000
	for range 100 {
		port = uint16(first + rand.IntN(last-first))
		l, failed := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if failed == nil {
			return port, l.Close()
		}
		err = failed
	}
	return 0, fmt.Errorf("finding a free port from %d to %d on 127.0.0.1: %w", first, last, err)
}

// url returns the shop's URL.
func (s *shop) url() string { return "http://" + s.address.String() }

// configDir returns the first configuration directory in the topology.
func (s *shop) configDir() string {
	if len(s.topology.Config) == 0 {
		return ""
	}
	return s.topology.Config[0]
}

// errRequested is the cause of a stop by the user. Messages contain its text.
var errRequested = errors.New("on request")

// start runs the mesh in a goroutine until stop cancels it.
func (s *shop) start(ctx context.Context) {
	ctx, s.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(s.done)
		s.err = s.explain(s.Mesh.Run(ctx))
	}()
}

// explain adds remedies to those errors of the mesh that a user of the demo can fix.
func (s *shop) explain(err error) error {
	var running *mesh.AlreadyRunningError
	var conflict *portowner.ConflictError
	switch {
	case errors.As(err, &running):
		return fmt.Errorf("a demo is already running (pid %d): stop it with Ctrl-C in its terminal, or with `pilotfish down --name %s`", running.PID, running.Name)
	case errors.As(err, &conflict) && conflict.Address == s.address.String():
		return fmt.Errorf("the gateway of the book shop cannot listen on %s: %w, or select another port with --port", s.url(), err)
	}
	return err
}

// WaitReady waits until every workload is ready. If the mesh did not start, it returns the error of the mesh's Run.
func (s *shop) WaitReady(ctx context.Context) error {
	err := s.Mesh.WaitReady(ctx)
	if !errors.Is(err, mesh.ErrEnded) {
		return err
	}
	if <-s.done; s.err != nil {
		return s.err
	}
	return err
}

// stop stops the mesh, waits until it has stopped, and removes the temporary directory.
func (s *shop) stop(ctx context.Context) error {
	if s.cancel != nil {
		s.cancel(errRequested)
		select {
		case <-s.done:
		case <-ctx.Done():
			return fmt.Errorf("waiting until the mesh stops: %w", ctx.Err())
		}
	}
	if s.folder != "" {
		return errors.Join(s.err, os.RemoveAll(s.folder))
	}
	return s.err
}
