package packets

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

// Sockets test packets with nothing but sockets, which takes no privileges. Less can be seen than with a Lab: packets are
// sent by the process's own user; what leaves the namespace really leaves it; nothing comes in; and a port that another
// process listens at cannot be watched.
type Sockets struct {
	cfg   Config
	ns    *os.File
	own   map[iptables.Families][]netip.Addr
	link  string
	ports []uint16
}

// OpenSockets readies sockets that watch the ports, to which redirection leads.
func OpenSockets(cfg Config, ports []uint16) (*Sockets, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	s := &Sockets{cfg: cfg, ports: ports, own: map[iptables.Families][]netip.Addr{}}
	var err error
	if s.ns, err = namespaceOf(cfg.NetNS); err != nil {
		return nil, err
	}
	if err := inside(int(s.ns.Fd()), s.look); err != nil {
		return nil, errors.Join(fmt.Errorf("list the addresses: %w", err), s.Close())
	}
	return s, nil
}

// look finds the addresses that others call the namespace by.
func (s *Sockets) look() error {
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

// Families are those that the namespace has addresses of.
func (s *Sockets) Families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if len(s.own[f]) > 0 {
			all = append(all, f)
		}
	}
	return all
}

// Own are the addresses of the namespace's links.
func (s *Sockets) Own(f iptables.Families) ([]netip.Addr, error) { return s.own[f], nil }

// Ends are of a Lab's link alone: the namespace's own address here, and none outside.
func (s *Sockets) Ends(f iptables.Families) (near, far netip.Addr) { return s.own[f][0], netip.Addr{} }

// Link is the first link with an address.
func (s *Sockets) Link() string { return s.link }

// Close ends the use of the namespace.
func (s *Sockets) Close() error { return s.ns.Close() }

// Send sends packets, all at once, and tells in their order what became of each. What arrives at none of the watched ports
// is told to be nowhere, or where the network stack says why.
func (s *Sockets) Send(ctx context.Context, packets []Packet) ([]Arrival, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	r := &round{byToken: map[token]*attempt{}, held: map[lane]bool{}}
	defer r.close()
	if err := inside(int(s.ns.Fd()), func() error { return r.watch(s.watched(packets)) }); err != nil {
		return nil, err
	}
	for _, p := range packets {
		a := newAttempt(p)
		r.attempts, r.byToken[a.token] = append(r.attempts, a), a
		err := ErrHeld
		if !r.anyHeld(a) {
			err = s.open(a)
		}
		if err != nil {
			a.end(Arrival{Where: Nowhere, Err: err})
		}
	}
	return r.run(ctx, s.cfg), nil
}

func (s *Sockets) open(a *attempt) error {
	if a.packet.Interface != "" {
		return fmt.Errorf("%w %s: %w (CAP_NET_ADMIN)", ErrNoPassage, a.packet.Interface, ErrNotPermitted)
	}
	if a.packet.Inbound {
		return fmt.Errorf("send from outside: %w (CAP_NET_ADMIN)", ErrNotPermitted)
	}
	return namespace.OnThread(func() error {
		if err := enter(int(s.ns.Fd())); err != nil {
			return err
		}
		if broadcast(a.packet.Destination) {
			return fmt.Errorf("%s: %w", a.packet.Destination.Addr(), ErrBroadcast)
		}
		if err := routed(a.packet.Destination); err != nil {
			return err
		}
		return as(a.packet.UID, a.packet.GID, func() error { return a.open(a.packet.Source) })
	})
}

var everywhere = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// broadcast asks the kernel without sending anything: it lets nobody connect to such an address who has not said that he
// knows what it is. It is called on a thread in the namespace.
func broadcast(to netip.AddrPort) bool {
	if !to.Addr().Is4() || to.Addr() == everywhere { // of which the kernel says nothing where it has no route
		return to.Addr() == everywhere
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	return errors.Is(unix.Connect(fd, sockaddr(to)), unix.EACCES) &&
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1) == nil && unix.Connect(fd, sockaddr(to)) == nil
}

// routed asks for a route without sending anything. It is called on a thread in the namespace.
func routed(to netip.AddrPort) error {
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

// watched are the ports where packets may arrive: those that redirection leads to, and their own.
func (s *Sockets) watched(packets []Packet) map[lane]bool {
	all := map[lane]bool{}
	for _, p := range packets {
		a := attempt{packet: p}
		l := lane{family: familyOf(p.Destination.Addr()), protocol: a.number()}
		for _, l.port = range append([]uint16{p.Destination.Port()}, s.ports...) {
			all[l] = true
		}
	}
	return all
}

// round is one call of Send.
type round struct {
	attempts []*attempt
	byToken  map[token]*attempt
	catchers []*catcher
	held     map[lane]bool // by other processes
	serving  sync.WaitGroup
}

func (r *round) watch(lanes map[lane]bool) error {
	for l := range lanes {
		c := &catcher{lane: l, plain: true}
		switch err := c.listen(netip.AddrPortFrom(unspecified(l.family), l.port)); {
		case errors.Is(err, unix.EADDRINUSE):
			r.held[l] = true
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EADDRNOTAVAIL):
			// a port below 1024, or no such family: nothing can be seen there
		case err != nil:
			return fmt.Errorf("listen for test packets at port %d: %w", l.port, err)
		default:
			r.catchers = append(r.catchers, c)
		}
	}
	return nil
}

func (r *round) run(ctx context.Context, cfg Config) []Arrival {
	for _, c := range r.catchers {
		r.serving.Go(func() {
			c.serve(func(t token, got Arrival) {
				if a, ok := r.byToken[t]; ok {
					a.end(got)
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
			a.end(Arrival{Where: Nowhere})
		}
		all[i] = a.got
	}
	return all
}

// anyHeld tells whether another process might get the packet, which is then not sent.
func (r *round) anyHeld(a *attempt) bool {
	for l := range r.held {
		if l.family == familyOf(a.packet.Destination.Addr()) && l.protocol == a.number() {
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
	for _, c := range r.catchers {
		_ = c.Close()
	}
	r.serving.Wait()
}
