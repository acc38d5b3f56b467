package packets

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables"
)

type token [16]byte

// attempt is a packet on its way.
type attempt struct {
	packet   Packet
	token    token
	port     uint16         // it is sent from
	socket   *os.File       // nil of inbound packets
	sequence uint32         // of inbound TCP
	asked    netip.AddrPort // who got it outside, if it is answered; guarded by the session's mutex
	here     *Arrival       // where it arrived, if it is answered there; guarded too

	began time.Time
	once  sync.Once
	done  chan struct{}
	got   Arrival
}

func newAttempt(p Packet) *attempt {
	a := &attempt{packet: p, done: make(chan struct{}), began: time.Now(), sequence: mathrand.Uint32()}
	_, _ = rand.Read(a.token[:])
	return a
}

func (a *attempt) tcp() bool { return a.packet.Protocol == iptables.TCP }

func (a *attempt) number() byte {
	if a.tcp() {
		return protocolTCP
	}
	return protocolUDP
}

// end tells what became of the packet; the first one to tell is right.
func (a *attempt) end(got Arrival) {
	a.once.Do(func() {
		got.Took = time.Since(a.began)
		a.got = got
		close(a.done)
	})
}

// open makes and binds the socket. It is called on a thread in the namespace, which has the packet's owner.
func (a *attempt) open(source netip.Addr) error {
	domain, kind := unix.AF_INET, unix.SOCK_DGRAM
	if !a.packet.Destination.Addr().Is4() {
		domain = unix.AF_INET6
	}
	if a.tcp() {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if !source.IsValid() {
		source = unspecified(familyOf(a.packet.Destination.Addr()))
	}
	if a.port, err = a.bind(fd, source); err != nil {
		_ = unix.Close(fd)
		return err
	}
	a.socket = os.NewFile(uintptr(fd), a.packet.String())
	return nil
}

func (a *attempt) bind(fd int, source netip.Addr) (port uint16, err error) {
	// A connection that is ended by a reset is forgotten at once.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err := a.mark(fd); err != nil {
		return 0, permission("send as a transparent proxy", err)
	}
	if err := bindPatiently(fd, sockaddr(netip.AddrPortFrom(source, a.packet.SourcePort))); err != nil {
		return 0, fmt.Errorf("send from %s: %w", source, os.NewSyscallError("bind", err))
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	switch b := bound.(type) {
	case *unix.SockaddrInet4:
		port = uint16(b.Port)
	case *unix.SockaddrInet6:
		port = uint16(b.Port)
	}
	return port, nil
}

// mark has the socket have the packet's mark, and whichever source.
func (a *attempt) mark(fd int) error {
	if a.packet.Mark == 0 {
		return nil
	}
	level, transparent := unix.SOL_IP, unix.IP_TRANSPARENT
	if a.packet.Destination.Addr().Is6() {
		level, transparent = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(a.packet.Mark)), unix.SetsockoptInt(fd, level, transparent, 1))
}

// bindPatiently waits for a port that is still held. A socket that was closed here lives on in each process that was
// forked meanwhile and has not begun its program yet, so that a packet from the port of one before could not be sent.
func bindPatiently(fd int, to unix.Sockaddr) (err error) {
	const patience, pause = time.Second, 5 * time.Millisecond
	for began := time.Now(); time.Since(began) < patience; time.Sleep(pause) {
		if err = unix.Bind(fd, to); !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return err
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// send connects, and says its token to whoever answers.
func (a *attempt) send(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = a.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := a.connect(); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) && !a.stopped(err) {
			a.end(Arrival{Where: Nowhere, Err: err})
		}
		return
	}
	if _, err := a.socket.Write(a.token[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !a.stopped(err) {
		a.end(Arrival{Where: Nowhere, Err: err})
	}
}

func (a *attempt) connect() error {
	raw, err := a.socket.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	begun := false
	err = raw.Write(func(fd uintptr) bool {
		if !begun { // in here, so that the poller cannot tell of the connection before it is waited for
			begun = true
			result = os.NewSyscallError("connect", unix.Connect(int(fd), sockaddr(a.packet.Destination)))
			return !errors.Is(result, unix.EINPROGRESS)
		}
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		result = os.NewSyscallError("connect", err)
		return true
	})
	return errors.Join(err, result)
}
