package packettest

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

// attempt is one test packet and its result.
type attempt struct {
	packet   Packet
	token    token
	port     uint16         // the source port
	socket   *os.File       // nil for inbound packets
	sequence uint32         // initial TCP sequence number of an inbound packet
	replier  netip.AddrPort // destination of the packet when it left the namespace, from which it was answered; guarded by session.mu
	// Arrival in the namespace, set while the harness waits for the reply; guarded by session.mu.
	arrivedAt *Arrival

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

func (a *attempt) isTCP() bool { return a.packet.Protocol == iptables.TCP }

func (a *attempt) protocolNumber() byte {
	if a.isTCP() {
		return protocolTCP
	}
	return protocolUDP
}

// finish records the result and completes the attempt. Later calls have no effect.
func (a *attempt) finish(got Arrival) {
	a.once.Do(func() {
		got.Took = time.Since(a.began)
		a.got = got
		close(a.done)
	})
}

// open creates and binds the socket. It must be called in runAs, on a thread in the namespace.
func (a *attempt) open(source netip.Addr) error {
	domain, kind := unix.AF_INET, unix.SOCK_DGRAM
	if !a.packet.Destination.Addr().Is4() {
		domain = unix.AF_INET6
	}
	if a.isTCP() {
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
	// A zero linger time makes close send a reset, so that the connection does not remain in TIME_WAIT.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err := a.setMark(fd); err != nil {
		return 0, permission("sending a test packet with a packet mark", err)
	}
	if err := bindWithRetry(fd, sockaddr(netip.AddrPortFrom(source, a.packet.SourcePort))); err != nil {
		return 0, fmt.Errorf("sending a test packet from %s: %w", source, os.NewSyscallError("bind", err))
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

// setMark sets the packet's mark on the socket, and allows any source address. It does nothing for a packet without a
// mark.
func (a *attempt) setMark(fd int) error {
	if a.packet.Mark == 0 {
		return nil
	}
	level, transparent := unix.SOL_IP, unix.IP_TRANSPARENT
	if a.packet.Destination.Addr().Is6() {
		level, transparent = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(a.packet.Mark)), unix.SetsockoptInt(fd, level, transparent, 1))
}

// bindWithRetry binds a socket, and retries for one second while the port is in use. The port of an earlier packet can
// be in use for a moment, because a closed socket stays open in a child process between fork and exec.
func bindWithRetry(fd int, to unix.Sockaddr) (err error) {
	const timeout, pause = time.Second, 5 * time.Millisecond
	for began := time.Now(); time.Since(began) < timeout; time.Sleep(pause) {
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

// send connects the socket and writes the token.
func (a *attempt) send(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = a.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := a.connect(); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) && !a.isDropped(err) {
			a.finish(Arrival{Where: Nowhere, Err: err})
		}
		return
	}
	if _, err := a.socket.Write(a.token[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !a.isDropped(err) {
		a.finish(Arrival{Where: Nowhere, Err: err})
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
		if !begun { // connect inside the callback, so that the poller does not miss the completion
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
