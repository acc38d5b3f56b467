package packettest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Sockets sends test packets with unprivileged sockets. It can verify less than a Harness. It sends packets as the
// process's own user, and packets that leave the namespace reach the network. It can neither send inbound packets, nor
// observe a port on which another process listens.
type Sockets struct {
	cfg   Config
	ns    *os.File
	own   map[iptables.Families][]netip.Addr
	link  string
	ports []uint16
}

// OpenSockets returns a Sockets that listens on these ports during Send. They are the ports to which rules redirect.
func OpenSockets(cfg Config, ports []uint16) (*Sockets, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	s := &Sockets{cfg: cfg, ports: ports, own: map[iptables.Families][]netip.Addr{}}
	var err error
	if s.ns, err = namespaceOf(cfg.NetNS); err != nil {
		return nil, err
	}
	if err := inNamespace(int(s.ns.Fd()), s.readAddresses); err != nil {
		return nil, errors.Join(fmt.Errorf("listing the addresses: %w", err), s.Close())
	}
	return s, nil
}

// readAddresses determines the addresses of the namespace, and its first link with an address.
func (s *Sockets) readAddresses() error {
	links, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, l := range links {
		addresses, err := l.Addrs()
		if err != nil || l.Flags&net.FlagLoopback != 0 || l.Flags&net.FlagUp == 0 {
			continue
		}
		for _, a := range addresses {
			p, err := netip.ParsePrefix(a.String())
			if ip := p.Addr().Unmap(); err == nil && ip.IsGlobalUnicast() {
				s.own[familyOf(ip)] = append(s.own[familyOf(ip)], ip)
				s.link = cmp.Or(s.link, l.Name)
			}
		}
	}
	return nil
}

// Families returns the address families of the namespace's addresses.
func (s *Sockets) Families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if len(s.own[f]) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// Addresses returns the addresses of the namespace's links.
func (s *Sockets) Addresses(f iptables.Families) ([]netip.Addr, error) { return s.own[f], nil }

// Ends returns the namespace's own address as near. far is the zero Addr, because Sockets has no link to the outside.
func (s *Sockets) Ends(f iptables.Families) (near, far netip.Addr) { return s.own[f][0], netip.Addr{} }

// Link returns the name of the first link with an address.
func (s *Sockets) Link() string { return s.link }

// Close closes the namespace's file.
func (s *Sockets) Close() error { return s.ns.Close() }

// Send sends all packets at the same time. It returns their results in the same order. If a packet arrives at none of
// the watched ports, its result is Nowhere, with the network stack's error, if any.
func (s *Sockets) Send(ctx context.Context, packets []Packet) ([]Arrival, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r := &round{byToken: map[token]*attempt{}, held: map[socketKey]bool{}}
	defer r.close()
	if err := inNamespace(int(s.ns.Fd()), func() error { return r.watch(s.watchedPorts(packets)) }); err != nil {
		return nil, err
	}
	for _, p := range packets {
		a := newAttempt(p)
		r.attempts, r.byToken[a.token] = append(r.attempts, a), a
		err := ErrPortInUse
		if !r.mayReachOther(a) {
			err = s.open(a)
		}
		if err != nil {
			a.finish(Arrival{Where: Nowhere, Err: err})
		}
	}
	return r.run(ctx, s.cfg), nil
}

func (s *Sockets) open(a *attempt) error {
	if a.packet.Interface != "" {
		return fmt.Errorf("%w %s: %w (CAP_NET_ADMIN)", ErrInterfaceUnusable, a.packet.Interface, ErrNotPermitted)
	}
	if a.packet.Inbound {
		return fmt.Errorf("sending a test packet from outside the namespace: %w (CAP_NET_ADMIN)", ErrNotPermitted)
	}
	return namespace.OnThread(func() error {
		if err := enter(int(s.ns.Fd())); err != nil {
			return err
		}
		if isBroadcast(a.packet.Destination) {
			return fmt.Errorf("%s: %w", a.packet.Destination.Addr(), ErrBroadcast)
		}
		if err := checkRoute(a.packet.Destination); err != nil {
			return err
		}
		return runAs(a.packet.UID, a.packet.GID, func() error { return a.open(a.packet.Source) })
	})
}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// isBroadcast reports whether the kernel treats the address as a broadcast address. It does not send a packet, because
// the kernel already rejects the call of connect for a broadcast address without SO_BROADCAST. It must be called on a
// thread in the namespace.
func isBroadcast(to netip.AddrPort) bool {
	// Without a route, the kernel does not recognize this address as a broadcast address.
	if !to.Addr().Is4() || to.Addr() == limitedBroadcast {
		return to.Addr() == limitedBroadcast
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return errors.Is(unix.Connect(fd, sockaddr(to)), unix.EACCES) &&
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) == nil && unix.Connect(fd, sockaddr(to)) == nil
}

// checkRoute returns an error if no route exists. It sends no packet and must be called on a thread in the namespace.
func checkRoute(to netip.AddrPort) error {
	domain := unix.AF_INET
	if to.Addr().Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return fmt.Errorf("%s: %w: %w", to.Addr(), ErrNoRoute, err)
	}
	return nil
}

// watchedPorts returns the ports at which packets may arrive: the redirect ports and the packets' destination ports.
func (s *Sockets) watchedPorts(packets []Packet) map[socketKey]bool {
	all := map[socketKey]bool{}
	for _, p := range packets {
		a := attempt{packet: p}
		l := socketKey{family: familyOf(p.Destination.Addr()), protocol: a.protocolNumber()}
		for _, l.port = range append([]uint16{p.Destination.Port()}, s.ports...) {
			all[l] = true
		}
	}
	return all
}

// round is one call of Send.
type round struct {
	attempts  []*attempt
	byToken   map[token]*attempt
	receivers []*receiver
	held      map[socketKey]bool // ports on which other processes listen
	serving   sync.WaitGroup
}

func (r *round) watch(socketKeys map[socketKey]bool) error {
	for l := range socketKeys {
		c := &receiver{socketKey: l, plain: true}
		switch err := c.listen(netip.AddrPortFrom(unspecified(l.family), l.port)); {
		case errors.Is(err, unix.EADDRINUSE):
			r.held[l] = true
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL):
			// The port is privileged, or the address family is missing. Packets to it cannot be observed.
		case err != nil:
			return fmt.Errorf("listening for test packets on port %d: %w", l.port, err)
		default:
			r.receivers = append(r.receivers, c)
		}
	}
	return nil
}

func (r *round) run(ctx context.Context, cfg Config) []Arrival {
	for _, c := range r.receivers {
		r.serving.Go(func() {
			c.serve(func(t token, got Arrival) {
				if a, ok := r.byToken[t]; ok {
					a.finish(got)
				}
			}, cfg.Timeout)
		})
	}
	for _, a := range r.attempts {
		if a.socket != nil {
			r.serving.Go(func() { a.send(ctx) })
		}
	}
	all := make([]Arrival, len(r.attempts))
	for i, a := range r.attempts {
		select {
		case <-a.done:
		case <-ctx.Done():
			a.finish(Arrival{Where: Nowhere})
		}
		all[i] = a.got
	}
	return all
}

// mayReachOther reports whether another process might receive the packet. If so, the packet is not sent.
func (r *round) mayReachOther(a *attempt) bool {
	for l := range r.held {
		if l.family == familyOf(a.packet.Destination.Addr()) && l.protocol == a.protocolNumber() {
			return true
		}
	}
	return false
}

func (r *round) close() {
	for _, a := range r.attempts {
		if a.socket != nil {
			_ = a.socket.Close()
		}
	}
	for _, c := range r.receivers {
		_ = c.Close()
	}
	r.serving.Wait()
}
