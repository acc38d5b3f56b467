package packets

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// open makes and binds the socket. It is called on a thread in the namespace, which has the packet's owner.
func (a *attempt) open(source netip.Addr) error {
	domain, kind, any := unix.AF_INET, unix.SOCK_DGRAM, netip.IPv4Unspecified()
	if !a.packet.Destination.Addr().Is4() {
		domain, any = unix.AF_INET6, netip.IPv6Unspecified()
	}
	if a.tcp() {
		kind = unix.SOCK_STREAM
	}
	fd, err := unix.Socket(domain, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	if !source.IsValid() {
		source = any
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
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(source, 0))); err != nil {
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

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

// run sends everything and waits until it arrived, or had the time to.
func (s *session) run(ctx context.Context) {
	for _, a := range s.attempts {
		a.began, a.sequence = time.Now(), rand.Uint32()
	}
	for _, c := range s.catchers {
		s.serving.Go(func() { c.serve(s.arrived, s.cfg.Timeout) })
	}
	reading := make(chan struct{})
	go func() { defer close(reading); s.wire.read(s.left) }()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	for _, a := range s.attempts {
		select {
		case <-a.done: // it could not be prepared
			continue
		default:
		}
		if a.packet.Inbound {
			_, far := s.Ends(familyOf(a.packet.Destination.Addr()))
			s.wire.begin(a, netip.AddrPortFrom(far, a.port))
			continue
		}
		s.serving.Go(func() { a.send(ctx) })
	}
	for _, a := range s.attempts {
		select {
		case <-a.done:
		case <-ctx.Done():
			a.end(Arrival{Where: Nowhere})
		}
	}
	s.stopReading(reading)
}

// stopReading wakes the reader of the wire, which the next session reads again.
func (s *session) stopReading(reading <-chan struct{}) {
	_ = s.wire.file.SetReadDeadline(time.Unix(1, 0))
	<-reading
	_ = s.wire.file.SetReadDeadline(time.Time{})
}

// send connects, and says its token to whoever answers.
func (a *attempt) send(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = a.socket.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := a.connect(); err != nil {
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			a.end(Arrival{Where: Nowhere, Err: err})
		}
		return
	}
	if _, err := a.socket.Write(a.token[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
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

// arrived is told by the catchers.
func (s *session) arrived(t token, got Arrival) {
	if a, ok := s.byToken[t]; ok {
		a.end(got)
	}
}

// left is told by the wire of each frame that left the namespace.
func (s *session) left(f frame) {
	if a, ok := s.byPort[flow{f.protocol, f.to.Port()}]; ok && a.packet.Inbound {
		switch {
		case f.flags&(flagSYN|flagACK) == flagSYN|flagACK:
			s.wire.proceed(a, f)
		case f.flags&flagRST != 0:
			a.end(Arrival{Where: Nowhere, Err: unix.ECONNREFUSED})
		}
		return
	}
	a, ok := s.byPort[flow{f.protocol, f.from.Port()}]
	switch got := (Arrival{Where: Outside, At: f.to, From: f.from}); {
	case !ok || a.packet.Inbound:
	case f.protocol == protocolTCP && f.flags&(flagSYN|flagACK|flagRST) == flagSYN:
		a.end(got)
		s.wire.refuse(f)
	case f.protocol == protocolUDP && string(f.payload) == string(a.token[:]):
		a.end(got)
	}
}

// close takes the session's sockets and rules away.
func (s *session) close() error {
	var errs []error
	for _, a := range s.attempts {
		if a.socket != nil {
			errs = append(errs, a.socket.Close())
		}
	}
	for _, c := range s.catchers {
		errs = append(errs, c.Close())
	}
	for _, l := range s.standIns {
		errs = append(errs, l.Close())
	}
	s.serving.Wait()
	if s.steering != nil {
		errs = append(errs, s.steering.Close())
	}
	return errors.Join(errs...)
}
