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
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// loopbackForwarders forwards connections to an application that listens only on loopback or IPv6. The sidecar
// connects to the instance's own IPv4 address, so it could not reach the application otherwise. Only ports in the
// topology are forwarded. Other loopback ports remain private.
type loopbackForwarders struct {
	sandbox      *sandbox
	instanceAddr netip.Addr
	ports        []uint16

	mu         sync.Mutex
	forwarders map[uint16]*loopbackForwarder
	// dualStack contains the ports whose IPv6 wildcard listener also accepts IPv4 connections.
	dualStack map[uint16]bool
}

// loopbackForwarder is the open forwarder of one port.
type loopbackForwarder struct {
	to        netip.AddrPort
	forwarder *tcpForwarder
}

func newLoopbackForwarders(sb *sandbox, i *topology.Instance) *loopbackForwarders {
	d := &loopbackForwarders{sandbox: sb, instanceAddr: i.App, forwarders: map[uint16]*loopbackForwarder{}, dualStack: map[uint16]bool{}}
	for _, p := range i.Workload.Ports {
		if p.Protocol != "UDP" {
			d.ports = append(d.ports, p.Port)
		}
	}
	return d
}

// update reads on which addresses the application listens, and opens and closes forwarders accordingly.
func (d *loopbackForwarders) update(ctx context.Context) error {
	var listening []netip.AddrPort
	err := d.sandbox.namespace.Do(func() (err error) {
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
		errs = append(errs, d.updatePort(ctx, port, listening))
	}
	return errors.Join(errs...)
}

func (d *loopbackForwarders) updatePort(ctx context.Context, port uint16, listening []netip.AddrPort) error {
	var at []netip.Addr
	for _, l := range listening {
		if l.Port() == port {
			at = append(at, l.Addr())
		}
	}
	open := d.forwarders[port]
	if open != nil && slices.Contains(at, open.to.Addr()) {
		return nil
	}
	if open != nil {
		delete(d.forwarders, port)
		return open.forwarder.close()
	}
	to := d.findTarget(ctx, port, at)
	if !to.IsValid() {
		return nil
	}
	l, err := d.sandbox.namespace.Listen("tcp", netip.AddrPortFrom(d.instanceAddr, port).String())
	if errors.Is(err, syscall.EADDRINUSE) { // the application itself now listens on this address
		return nil
	}
	if err != nil {
		return err
	}
	d.forwarders[port] = &loopbackForwarder{netip.AddrPortFrom(to, port), newTCPForwarder(l, d.dialer(netip.AddrPortFrom(to, port)))}
	return nil
}

func (d *loopbackForwarders) dialer(to netip.AddrPort) func(context.Context, net.Conn) (net.Conn, error) {
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	}
	return func(ctx context.Context, _ net.Conn) (net.Conn, error) {
		return d.sandbox.namespace.Dial(ctx, "tcp", to.String())
	}
}

// findTarget returns the address on which the application listens, if the sidecar cannot reach that address. Otherwise
// it returns the zero Addr.
func (d *loopbackForwarders) findTarget(ctx context.Context, port uint16, at []netip.Addr) netip.Addr {
	if slices.Contains(at, d.instanceAddr) || slices.Contains(at, netip.IPv4Unspecified()) || len(at) == 0 {
		return netip.Addr{}
	}
	// Most IPv6 wildcard listeners also accept IPv4. The kernel's list of sockets does not contain this property, so
	// acceptsIPv4 connects to the port.
	if slices.Contains(at, netip.IPv6Unspecified()) && (d.dualStack[port] || d.acceptsIPv4(ctx, port)) {
		d.dualStack[port] = true
		return netip.Addr{}
	}
	slices.SortFunc(at, netip.Addr.Compare) // IPv4 is first, and :: precedes other IPv6 addresses
	for _, a := range at {
		if a.IsLoopback() || a.Is6() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	return netip.Addr{}
}

func (d *loopbackForwarders) acceptsIPv4(ctx context.Context, port uint16) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := d.sandbox.namespace.Dial(ctx, "tcp", netip.AddrPortFrom(d.instanceAddr, port).String())
	if err == nil {
		_ = conn.Close()
	}
	return !errors.Is(err, syscall.ECONNREFUSED)
}

// close closes all forwarders, so that a restarted application can bind any address.
func (d *loopbackForwarders) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for port, open := range d.forwarders {
		delete(d.forwarders, port)
		errs = append(errs, open.forwarder.close())
	}
	clear(d.dualStack)
	return errors.Join(errs...)
}
