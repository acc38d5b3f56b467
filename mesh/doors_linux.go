package mesh

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// doors hand connections on to an application that listens where its sidecar does not call it: on loopback or on IPv6
// alone. The sidecar calls it at the instance's own address of IPv4. Only for ports of the topology: what else an
// application keeps to its loopback stays there.
type doors struct {
	at    *place
	own   netip.Addr
	ports []uint16

	mu   sync.Mutex
	open map[uint16]*door
	// plain are ports at whose listener for all addresses of IPv6 those of IPv4 were seen to arrive.
	plain map[uint16]bool
}

// door is one that is open.
type door struct {
	to    netip.AddrPort
	relay *relay
}

func newDoors(at *place, i *Instance) *doors {
	d := &doors{at: at, own: i.App, open: map[uint16]*door{}, plain: map[uint16]bool{}}
	for _, p := range i.workload.Ports {
		if p.Protocol != "UDP" {
			d.ports = append(d.ports, p.Port)
		}
	}
	return d
}

// fit looks at where the application listens, and opens and closes doors as that asks for.
func (d *doors) fit(ctx context.Context) error {
	var listening []netip.AddrPort
	err := d.at.space.Do(func() (err error) {
		listening, err = portowner.Listening()
		return err
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, port := range d.ports {
		errs = append(errs, d.fitPort(ctx, port, listening))
	}
	return errors.Join(errs...)
}

func (d *doors) fitPort(ctx context.Context, port uint16, listening []netip.AddrPort) error {
	var at []netip.Addr
	for _, l := range listening {
		if l.Port() == port {
			at = append(at, l.Addr())
		}
	}
	one := d.open[port]
	if one != nil && slices.Contains(at, one.to.Addr()) {
		return nil
	}
	if one != nil {
		delete(d.open, port)
		return one.relay.close()
	}
	to := d.hidden(ctx, port, at)
	if !to.IsValid() {
		return nil
	}
	l, err := d.at.space.Listen("tcp", netip.AddrPortFrom(d.own, port).String())
	if errors.Is(err, syscall.EADDRINUSE) { // the application has come to listen there itself
		return nil
	}
	if err != nil {
		return err
	}
	d.open[port] = &door{netip.AddrPortFrom(to, port), newRelay(l, d.through(netip.AddrPortFrom(to, port)))}
	return nil
}

func (d *doors) through(to netip.AddrPort) func(context.Context, net.Conn) (net.Conn, error) {
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	}
	return func(ctx context.Context, _ net.Conn) (net.Conn, error) {
		return d.at.space.Dial(ctx, "tcp", to.String())
	}
}

// hidden is where the application listens, if that is nowhere that its sidecar calls it.
func (d *doors) hidden(ctx context.Context, port uint16, at []netip.Addr) netip.Addr {
	if slices.Contains(at, d.own) || slices.Contains(at, netip.IPv4Unspecified()) || len(at) == 0 {
		return netip.Addr{}
	}
	// Most listeners for all addresses of IPv6 are for those of IPv4 too; the kernel's list does not tell which.
	if slices.Contains(at, netip.IPv6Unspecified()) && (d.plain[port] || d.answers(ctx, port)) {
		d.plain[port] = true
		return netip.Addr{}
	}
	slices.SortFunc(at, netip.Addr.Compare) // IPv4 first, and :: before the others
	for _, a := range at {
		if a.IsLoopback() || a.Is6() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

func (d *doors) answers(ctx context.Context, port uint16) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := d.at.space.Dial(ctx, "tcp", netip.AddrPortFrom(d.own, port).String())
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

// close closes all, so that an application that starts may listen as it likes.
func (d *doors) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for port, one := range d.open {
		delete(d.open, port)
		errs = append(errs, one.relay.close())
	}
	clear(d.plain)
	return errors.Join(errs...)
}
