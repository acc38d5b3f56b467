package redirection

import (
	"cmp"
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

// owner is the user and group of a socket.
type owner struct{ uid, gid int }

// The request types: the first byte that a connection sends.
const (
	requestDirect      = 'n' // the identity of the receiver
	requestForwarded   = 'r' // the identity, and that of the server to which the proxy forwards
	requestTransparent = 't' // the same, forwarded with the client's address
)

// probe is one connection or datagram that expects a reply.
type probe struct {
	network     string // tcp, udp
	from        netip.AddrPort
	to          netip.AddrPort
	owner       owner
	mark        int
	requestType byte
	wait        time.Duration // 0 means replyTimeout
}

// replyTimeout is the timeout. It is less than the kernel's first retransmission after one second, so that a lost packet is
// detected.
const replyTimeout = 900 * time.Millisecond

// run makes the connection in the namespace, and returns the reply, "refused", "silence", or an error text.
func (p probe) run(ns *testns.Namespace) string {
	var reply string
	err := ns.Run(func() (err error) {
		// The thread ends with the function, so no other goroutine runs as that user.
		if err := asOwner(p.owner); err != nil {
			return err
		}
		reply, err = p.request()
		return err
	})
	switch {
	case err == nil:
		return reply
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPERM):
		return "refused"
	case errors.Is(err, errSilence):
		return "silence"
	}
	return err.Error()
}

// retryTimeout is the timeout of a retry, which a busy machine may need.
const retryTimeout = 20 * time.Second

// noReplyTimeout is the time after which a reply that is not expected is no longer awaited.
const noReplyTimeout = 200 * time.Millisecond

// arrive makes the connection. If an expected reply is missing, it retries with a longer timeout.
func (w *testNetwork) arrive(p probe, ns *testns.Namespace, want string) string {
	if w.noRetry {
		p.wait = noReplyTimeout
	}
	reply := p.run(ns)
	if reply != "silence" || want == "silence" || w.noRetry {
		return reply
	}
	p.wait = retryTimeout
	return p.run(ns)
}

var errSilence = errors.New("silence")

// asOwner makes the owner the creator of this thread's sockets. The kernel uses the file system UID and GID.
func asOwner(o owner) error {
	if _, err := unix.SetfsgidRetGid(o.gid); err != nil {
		return err
	}
	_, err := unix.SetfsuidRetUid(o.uid)
	return err
}

func (p probe) request() (string, error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	if p.to.Addr().Is6() {
		family = unix.AF_INET6
	}
	if p.network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if err := p.prepare(fd, family); err != nil {
		return "", err
	}
	if err := unix.Connect(fd, sockaddr(p.to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return "", err
	}
	deadline := time.Now().Add(cmp.Or(p.wait, replyTimeout))
	if err := wait(fd, unix.POLLOUT, deadline); err != nil {
		return "", err
	}
	if failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || failed != 0 {
		return "", errors.Join(err, unix.Errno(failed))
	}
	wish := p.requestType
	if wish == 0 {
		wish = requestDirect
	}
	if _, err := unix.Write(fd, []byte{wish}); err != nil {
		return "", err
	}
	return p.readReply(fd, deadline)
}

// prepare sets socket options. They need privileges that the owner lacks but the thread's capabilities allow.
func (p probe) prepare(fd, family int) error {
	if p.network == "tcp" { // close with a reset, so that no state remains in the kernel
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
	}
	if p.mark != 0 {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, p.mark); err != nil {
			return err
		}
		transparent(fd, map[int]int{unix.AF_INET: 0, unix.AF_INET6: 1}[family])
	}
	if !p.from.Addr().IsValid() {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(fd, sockaddr(p.from))
}

func (p probe) readReply(fd int, deadline time.Time) (string, error) {
	var all strings.Builder
	buffer := make([]byte, 512)
	for {
		if err := wait(fd, unix.POLLIN, deadline); err != nil {
			return "", err
		}
		n, err := unix.Read(fd, buffer)
		if err != nil {
			return "", err
		}
		all.Write(buffer[:n])
		if n == 0 || p.network == "udp" {
			return all.String(), nil
		}
	}
}

func wait(fd int, events int16, deadline time.Time) error {
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errSilence
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, int(left.Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}
