package packettest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// Harness simulates the network outside a namespace in order to send test packets. Its methods must not be called
// concurrently.
type Harness struct {
	cfg    Config
	ns     *os.File
	lock   net.Listener
	veth   *vethPair
	farEnd *farEnd
	sent   map[connection]bool
	// lastPort is the offset of the last source port in the range of inbound packets.
	lastPort int
}

// Inbound packets have a source port from this range, which is below the kernel's ephemeral ports.
const (
	firstSourcePort = 20000
	sourcePorts     = 12000
)

// Open creates a Harness. A namespace has at most one Harness at a time. If there is one, Open waits until it is closed
// or ctx ends.
func Open(ctx context.Context, cfg Config) (l *Harness, err error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l = &Harness{cfg: cfg, lastPort: mathrand.IntN(sourcePorts)}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.ns, err = namespaceOf(cfg.NetNS); err != nil {
		return l, err
	}
	if err := l.acquire(ctx); err != nil {
		return l, err
	}
	return l, inNamespace(int(l.ns.Fd()), func() (err error) {
		if l.veth, err = newVethPair(); err != nil {
			return err
		}
		l.farEnd, err = openFarEnd(l.veth) // newVethPair moved the thread to the outside namespace
		return err
	})
}

// acquire locks the namespace for this harness. The lock is an abstract Unix socket. The kernel releases it when the
// process ends.
func (l *Harness) acquire(ctx context.Context) error {
	for {
		err := inNamespace(int(l.ns.Fd()), func() (err error) {
			l.lock, err = net.Listen("unix", lockName)
			return err
		})
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("another process tests packets in this network namespace: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Families returns the address families in which the namespace can send packets.
func (l *Harness) Families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if _, ok := l.veth.families[f]; ok {
			all = append(all, f)
		}
	}
	return all
}

// Addresses returns the addresses of the namespace's links. If these have none, it returns the near address of the
// harness's link.
func (l *Harness) Addresses(f iptables.Families) ([]netip.Addr, error) { return l.veth.ownAddresses(f) }

// Ends returns the addresses of the harness's link. near is the source address of packets to the outside, and far is
// the source address of inbound packets.
func (l *Harness) Ends(f iptables.Families) (near, far netip.Addr) {
	e := l.veth.families[f]
	return e.near, e.far
}

// Link returns the name of the link in the namespace through which inbound packets arrive.
func (l *Harness) Link() string { return nearLink }

// Close removes all links, rules and routes that the harness created.
func (l *Harness) Close() error {
	var errs []error
	if l.farEnd != nil {
		errs = append(errs, l.farEnd.file.Close())
	}
	if l.veth != nil {
		l.deleteConnections()
		errs = append(errs, l.veth.Close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	if l.ns != nil {
		errs = append(errs, l.ns.Close())
	}
	return errors.Join(errs...)
}

// Send sends all packets at the same time. It returns their results in the same order.
func (l *Harness) Send(ctx context.Context, packets []Packet) ([]Arrival, error) {
	s := &session{Harness: l, byToken: map[token]*attempt{}, byPort: map[flow]*attempt{}}
	err := s.open(packets)
	if err == nil {
		s.run(ctx)
	}
	err = errors.Join(err, s.close())
	if err != nil {
		return nil, err
	}
	all := make([]Arrival, len(s.attempts))
	for i, a := range s.attempts {
		all[i] = a.got
		if by := s.veth.testedInterfaces[a.packet.Interface]; a.got.Where == Nowhere && a.got.Err == nil && a.packet.Inbound && by != nil {
			all[i].Err = by.noAddress[familyOf(a.packet.Destination.Addr())]
		}
	}
	return all, nil
}

// flow identifies an attempt by protocol and source port. All its packets and replies contain them.
type flow struct {
	protocol byte
	port     uint16
}

// session is one call of Send.
type session struct {
	*Harness
	attempts       []*attempt
	byToken        map[token]*attempt
	byPort         map[flow]*attempt
	receivers      []*receiver
	proxyListeners []net.Listener
	steering       *ruleSet
	serving        sync.WaitGroup
	mu             sync.Mutex // guards attempt.replier and attempt.arrivedAt
}

// open creates all sockets before the first packet is sent, so that the rules can match the ports of all.
func (s *session) open(packets []Packet) error {
	ports := map[byte][]uint16{}
	if err := inNamespace(int(s.ns.Fd()), func() error { s.veth.openTestedInterfaces(packets); return nil }); err != nil {
		return err
	}
	for _, p := range packets {
		a := newAttempt(p)
		s.attempts = append(s.attempts, a)
		s.byToken[a.token] = a
		if err := s.prepare(a); err != nil {
			a.finish(Arrival{Where: Nowhere, Err: err})
			continue
		}
		s.byPort[flow{a.protocolNumber(), a.port}] = a
		ports[a.protocolNumber()] = append(ports[a.protocolNumber()], a.port)
	}
	return inNamespace(int(s.ns.Fd()), func() (err error) {
		marks := []bool{false}
		if s.cfg.TransparentMark != (iptables.Mark{}) {
			marks = append(marks, true)
		}
		if s.receivers, err = newReceivers(s.Families(), marks); err != nil {
			return err
		}
		if s.proxyListeners, err = listenForProxy(s.Families(), s.cfg.TransparentPort); err != nil {
			return err
		}
		socketKeys := make([]socketKey, len(s.receivers))
		for i, c := range s.receivers {
			socketKeys[i] = c.socketKey
		}
		s.steering, err = installSteering(socketKeys, s.cfg.TransparentMark, ports, s.usedInterfaces(), s.repliedPorts())
		return err
	})
}

// prepare opens the socket of one packet, or selects the source port of an inbound one.
func (s *session) prepare(a *attempt) error {
	family := familyOf(a.packet.Destination.Addr())
	if _, ok := s.veth.families[family]; !ok {
		return ErrNoSuchFamily
	}
	if err := s.veth.checkInterface(a.packet); err != nil {
		return err
	}
	if a.packet.Inbound {
		a.port = s.freePort(a.protocolNumber())
		return nil
	}
	return namespace.OnThread(func() error {
		if err := enter(int(s.ns.Fd())); err != nil {
			return err
		}
		if isBroadcast(a.packet.Destination) {
			return fmt.Errorf("%s: %w", a.packet.Destination.Addr(), ErrBroadcast)
		}
		return runAs(a.packet.UID, a.packet.GID, func() error { return a.open(s.sourceAddress(a.packet)) })
	})
}

func familyOf(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// freePort returns a source port that no other packet of this session uses. It also differs from the ports of previous
// sessions as long as possible: to a packet with the same addresses and ports, the kernel would apply the redirection
// of the previous connection.
func (s *session) freePort(protocol byte) uint16 {
	for {
		s.lastPort = (s.lastPort + 1) % sourcePorts
		port := uint16(firstSourcePort + s.lastPort)
		if _, taken := s.byPort[flow{protocol, port}]; !taken {
			return port
		}
	}
}

// sourceAddress returns the address to which the packet's socket is bound. For a packet to the outside, this is the
// near address, so that the packet is routed through the harness's link. For a local packet, it returns the zero Addr,
// and the kernel selects the address.
func (s *session) sourceAddress(p Packet) netip.Addr {
	if p.Source.IsValid() {
		return p.Source
	}
	own, _ := s.Addresses(familyOf(p.Destination.Addr()))
	for _, stays := range own {
		if p.Destination.Addr() == stays {
			return netip.Addr{}
		}
	}
	near, _ := s.packetEnds(p)
	if p.Destination.Addr().IsLoopback() || p.Destination.Addr() == near {
		return netip.Addr{}
	}
	return near
}
