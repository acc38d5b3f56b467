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

// owner is whom a socket belongs to.
type owner struct{ uid, gid int }

// What a connection asks for, by its first byte.
const (
	askOnce          = 'n' // who is there
	askThrough       = 'r' // that, and who is where the proxy passes it on to
	askTransparently = 't' // the same, passed on with the client's address
)

// probe is one connection, or datagram, that waits for an answer.
type probe struct {
	network string // tcp, udp
	from    netip.AddrPort
	to      netip.AddrPort
	owner   owner
	mark    int
	wish    byte
	wait    time.Duration // patience, if 0
}

// patience is less than the second after which the kernel sends a connection's first packet again: a lost one is noticed.
const patience = 900 * time.Millisecond

// run makes the connection in the namespace, and gives the answer, or "refused", "silence", or what else went wrong.
func (p probe) run(ns *testns.Namespace) string {
	var said string
	err := ns.Within(func() (err error) {
		// The thread ends with this, so that nothing else becomes that user's.
		if err := asOwner(p.owner); err != nil {
			return err
		}
		said, err = p.ask()
		return err
	})
	switch {
	case err == nil:
		return said
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPERM):
		return "refused"
	case errors.Is(err, errSilence):
		return "silence"
	}
	return err.Error()
}

// long is how long a connection is waited for that did not arrive at first: the machine may have had no time for it.
const long = 20 * time.Second

// soon is when nothing has come yet that may come still.
const soon = 200 * time.Millisecond

// arrive makes the connection, and once more with more patience if there was no answer though there should be one.
func (w *world) arrive(p probe, ns *testns.Namespace, want string) string {
	if w.hasty {
		p.wait = soon
	}
	said := p.run(ns)
	if said != "silence" || want == "silence" || w.hasty {
		return said
	}
	p.wait = long
	return p.run(ns)
}

var errSilence = errors.New("silence")

// asOwner makes sockets of this thread the owner's. The kernel goes by the identity for file systems.
func asOwner(o owner) error {
	if _, err := unix.SetfsgidRetGid(o.gid); err != nil {
		return err
	}
	_, err := unix.SetfsuidRetUid(o.uid)
	return err
}

func (p probe) ask() (string, error) {
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
	deadline := time.Now().Add(cmp.Or(p.wait, patience))
	if err := wait(fd, unix.POLLOUT, deadline); err != nil {
		return "", err
	}
	if failed, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || failed != 0 {
		return "", errors.Join(err, unix.Errno(failed))
	}
	wish := p.wish
	if wish == 0 {
		wish = askOnce
	}
	if _, err := unix.Write(fd, []byte{wish}); err != nil {
		return "", err
	}
	return p.hear(fd, deadline)
}

// prepare needs privileges that the owner has not, so it is done by what the thread may do all the same.
func (p probe) prepare(fd, family int) error {
	if p.network == "tcp" { // the end is a reset, which leaves nothing behind in the kernel
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

func (p probe) hear(fd int, deadline time.Time) (string, error) {
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
