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
)

// shop is the book shop as a mesh of this machine.
type shop struct {
	*mesh.Mesh
	topology *mesh.Topology
	address  netip.AddrPort // where the gateway is published
	folder   string         // temporary, and removed at the end; empty when the files are the user's

	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error // how the mesh ended, once ended is closed
}

// newShop reads the topology and prepares the mesh. It starts nothing.
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
	topology, err := mesh.Load(filepath.Join(dir, topologyFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, UsageError{fmt.Errorf("%w: --dir names a folder that `pilotfish demo --write` made", err)}
	}
	if err != nil {
		return nil, err
	}
	s := &shop{topology: topology, ended: make(chan struct{})}
	if s.address, err = publish(topology, o.port); err != nil {
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
		RuntimeDir:   o.runtimeFolder(),
		EnvoyPath:    o.envoyPath,
		GuardCommand: guardCommand(self, folder),
	})
	return s, err
}

// guardCommand starts the mesh's guard, which removes the temporary folder too should this process be killed.
func guardCommand(self, folder string) []string {
	if folder == "" {
		return []string{self, "guard"}
	}
	return []string{self, "guard", "--remove", folder}
}

// runtimeFolder is where the mesh keeps its files while it runs; empty for the usual place. A check has a place of its
// own, so that it can run beside a demo: nobody asks for its status. It is not in the temporary folder, whose path may
// be too long for sockets.
func (o options) runtimeFolder() string {
	if o.check && o.runtimeDir == "" {
		return fmt.Sprintf("%s-check-%d", mesh.DefaultRuntimeDir(os.Getenv("XDG_RUNTIME_DIR"), os.Getuid()), os.Getpid())
	}
	return o.runtimeDir
}

// publish finds where the gateway is published, and moves it to the port that was asked for (0: as in the file).
func publish(t *mesh.Topology, port uint16) (netip.AddrPort, error) {
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
	return netip.AddrPort{}, fmt.Errorf("%s publishes no gateway's port: add `publish: 8080` to one", t.File)
}

// freePort finds a port that nobody listens on now, and that the kernel, as it is set by default, gives to no connection before
// the gateway listens on it.
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
	return 0, fmt.Errorf("finding a free port from %d to %d: %w", first, last, err)
}

// url is where a browser finds the shop.
func (s *shop) url() string { return "http://" + s.address.String() }

// configDir is the first directory of configuration.
func (s *shop) configDir() string {
	if len(s.topology.Config) == 0 {
		return ""
	}
	return s.topology.Config[0]
}

// errAsked is why an ordered end comes, as the mesh tells it.
var errAsked = errors.New("as asked")

// start runs the mesh until stop.
func (s *shop) start(ctx context.Context) {
	ctx, s.cancel = context.WithCancelCause(ctx)
	go func() {
		defer close(s.ended)
		s.err = s.explain(s.Mesh.Run(ctx))
	}()
}

// explain adds to the mesh's errors what the demo's user can do about them.
func (s *shop) explain(err error) error {
	var running *mesh.AlreadyRunningError
	var conflict *portowner.ConflictError
	switch {
	case errors.As(err, &running):
		return fmt.Errorf("a demo is running already (pid %d): end it with Ctrl-C where it runs, or with `pilotfish down --name %s`", running.PID, running.Name)
	case errors.As(err, &conflict) && conflict.Address == s.address.String():
		return fmt.Errorf("the shop cannot open at %s: %w, or have the shop elsewhere with --port", s.url(), err)
	}
	return err
}

// WaitReady waits for every workload. When the mesh could not even be started, that is the error.
func (s *shop) WaitReady(ctx context.Context) error {
	err := s.Mesh.WaitReady(ctx)
	if !errors.Is(err, mesh.ErrEnded) {
		return err
	}
	if <-s.ended; s.err != nil {
		return s.err
	}
	return err
}

// stop ends the mesh, waits until it has ended, and removes the temporary files.
func (s *shop) stop(ctx context.Context) error {
	if s.cancel != nil {
		s.cancel(errAsked)
		select {
		case <-s.ended:
		case <-ctx.Done():
			return fmt.Errorf("the mesh has not ended: %w", ctx.Err())
		}
	}
	if s.folder != "" {
		return errors.Join(s.err, os.RemoveAll(s.folder))
	}
	return s.err
}
