package packets

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

// Lab is the outside world of a namespace for the time of tests. Its methods are not called concurrently.
type Lab struct {
	cfg   Config
	ns    *os.File
	lock  net.Listener
	world *world
	wire  *wire
	sent  map[connection]bool
}

// Open readies a Lab. There is one at a time in a namespace: it waits for an earlier one, as long as ctx lets it.
func Open(ctx context.Context, cfg Config) (l *Lab, err error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, defaultTimeout)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	l = &Lab{cfg: cfg}
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
	return l, inside(int(l.ns.Fd()), func() (err error) {
		if l.world, err = makeWorld(); err != nil {
			return err
		}
		l.wire, err = openWire(l.world) // the thread is outside now
		return err
	})
}

// acquire takes the namespace for this Lab. The name of a socket is the kernel's to give back, whatever happens to us.
func (l *Lab) acquire(ctx context.Context) error {
	for {
		err := inside(int(l.ns.Fd()), func() (err error) {
			l.lock, err = net.Listen("unix", lockName)
			return err
		})
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("packets are being tested in the namespace by another process: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Families are those that packets can be sent of.
func (l *Lab) Families() (all []iptables.Families) {
	for _, f := range []iptables.Families{iptables.IPv4, iptables.IPv6} {
		if _, ok := l.world.families[f]; ok {
			all = append(all, f)
		}
	}
	return all
}

// Own are the addresses that others would call the namespace by: those of its links, or that of the Lab's if it has none.
func (l *Lab) Own(f iptables.Families) ([]netip.Addr, error) { return l.world.own(f) }

// Ends are the namespace's address at the Lab's link, from which packets to the outside are sent, and the address of the
// outside that packets come from.
func (l *Lab) Ends(f iptables.Families) (near, far netip.Addr) {
	e := l.world.families[f]
	return e.near, e.far
}

// Link is the name of the link in the namespace that packets from outside come in by.
func (l *Lab) Link() string { return nearLink }

// Close takes everything away that the Lab made.
func (l *Lab) Close() error {
	var errs []error
	if l.wire != nil {
		errs = append(errs, l.wire.file.Close())
	}
	if l.world != nil {
		l.forget()
		errs = append(errs, l.world.Close())
	}
	if l.lock != nil {
		errs = append(errs, l.lock.Close())
	}
	if l.ns != nil {
		errs = append(errs, l.ns.Close())
	}
	return errors.Join(errs...)
}

// Send sends packets, all at once, and tells in their order what became of each.
func (l *Lab) Send(ctx context.Context, packets []Packet) ([]Arrival, error) {
	s := &session{Lab: l, byToken: map[token]*attempt{}, byPort: map[flow]*attempt{}}
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
		if by := s.world.passages[a.packet.Interface]; a.got.Where == Nowhere && a.got.Err == nil && a.packet.Inbound && by != nil {
			all[i].Err = by.bare[familyOf(a.packet.Destination.Addr())]
		}
	}
	return all, nil
}

// flow tells attempts apart by what is in every packet.
type flow struct {
	protocol byte
	port     uint16
}

// session is one call of Send.
type session struct {
	*Lab
	attempts []*attempt
	byToken  map[token]*attempt
	byPort   map[flow]*attempt
	catchers []*catcher
	standIns []net.Listener
	steering *steering
	serving  sync.WaitGroup
	mu       sync.Mutex // of what was asked
}

// open makes every socket before the first packet, so that the rules that lead them can name them all.
func (s *session) open(packets []Packet) error {
	ports := map[byte][]uint16{}
	if err := inside(int(s.ns.Fd()), func() error { s.world.readyPassages(packets); return nil }); err != nil {
		return err
	}
	for _, p := range packets {
		a := newAttempt(p)
		s.attempts = append(s.attempts, a)
		s.byToken[a.token] = a
		if err := s.prepare(a); err != nil {
			a.end(Arrival{Where: Nowhere, Err: err})
			continue
		}
		s.byPort[flow{a.number(), a.port}] = a
		ports[a.number()] = append(ports[a.number()], a.port)
	}
	return inside(int(s.ns.Fd()), func() (err error) {
		marks := []bool{false}
		if s.cfg.TransparentMark != (iptables.Mark{}) {
			marks = append(marks, true)
		}
		if s.catchers, err = catchers(s.Families(), marks); err != nil {
			return err
		}
		if s.standIns, err = standIns(s.Families(), s.cfg.TransparentPort); err != nil {
			return err
		}
		lanes := make([]lane, len(s.catchers))
		for i, c := range s.catchers {
			lanes[i] = c.lane
		}
		s.steering, err = steer(lanes, s.cfg.TransparentMark, ports, s.passed(), s.answered())
		return err
	})
}

// prepare readies one packet to be sent.
func (s *session) prepare(a *attempt) error {
	family := familyOf(a.packet.Destination.Addr())
	if _, ok := s.world.families[family]; !ok {
		return ErrNoSuchFamily
	}
	if err := s.world.passable(a.packet); err != nil {
		return err
	}
	if a.packet.Inbound {
		a.port = s.freePort(a.number())
		return nil
	}
	return namespace.OnThread(func() error {
		if err := enter(int(s.ns.Fd())); err != nil {
			return err
		}
		if broadcast(a.packet.Destination) {
			return fmt.Errorf("%s: %w", a.packet.Destination.Addr(), ErrBroadcast)
		}
		return as(a.packet.UID, a.packet.GID, func() error { return a.open(s.source(a.packet)) })
	})
}

func familyOf(a netip.Addr) iptables.Families {
	if a.Is4() {
		return iptables.IPv4
	}
	return iptables.IPv6
}

// freePort is one that no other packet of this session comes from.
func (s *session) freePort(protocol byte) uint16 {
	for {
		port := uint16(20000 + mathrand.IntN(12000)) // below those that the kernel gives
		if _, taken := s.byPort[flow{protocol, port}]; !taken {
			return port
		}
	}
}

// source is the address that a socket is bound to. Packets to the outside are led there by it; the kernel chooses for
// those that stay.
func (s *session) source(p Packet) netip.Addr {
	if p.Source.IsValid() {
		return p.Source
	}
	own, _ := s.Own(familyOf(p.Destination.Addr()))
	for _, stays := range own {
		if p.Destination.Addr() == stays {
			return netip.Addr{}
		}
	}
	near, _ := s.endsOf(p)
	if p.Destination.Addr().IsLoopback() || p.Destination.Addr() == near {
		return netip.Addr{}
	}
	return near
}
