package namespace

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/nlsocket"
)

// Lock is the lock of a namespace. It also has netlink sockets in the namespace, which its users share. It is not safe
// for concurrent use.
type Lock struct {
	lock    int
	held    *os.File // a duplicate of the lock for child processes
	sockets map[int]socket
}

type socket struct {
	*nlsocket.Socket
	failure error
	leave   bool // Release closes the socket in the background
}

// Acquire acquires the lock of the namespace with the file descriptor fd; 0 or less selects the calling thread's. If
// LockTimeout has passed, it returns a Lock without having locked the namespace. Release releases the lock, and so does
// the kernel when the process exits.
func Acquire(ctx context.Context, fd int) (*Lock, error) {
	t := &Lock{lock: -1, sockets: map[int]socket{}}
	err := t.acquire(ctx, fd)
	if err != nil {
		t.Release()
		return nil, fmt.Errorf("locking the network namespace: %w", err)
	}
	return t, nil
}

func (t *Lock) acquire(ctx context.Context, fd int) error {
	deadline, _ := ctx.Deadline()
	free := false
	err := Do(fd, func() (err error) {
		if t.lock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		free, err = tryLock(t.lock)
		for _, protocol := range []int{unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE} {
			s, failure := nlsocket.Dial(protocol, deadline)
			t.sockets[protocol] = socket{Socket: s, failure: failure}
		}
		return err
	})
	if free || err != nil {
		return err
	}
	return waitForLock(ctx, t.lock)
}

// Socket returns the shared socket of a netlink protocol, NETLINK_NETFILTER or NETLINK_ROUTE.
func (t *Lock) Socket(protocol int) (*nlsocket.Socket, error) {
	s := t.sockets[protocol]
	return s.Socket, s.failure
}

// File returns a file that child processes inherit. If this process is killed, the lock is then released only after
// such a child has exited. File returns nil if the lock cannot be duplicated.
func (t *Lock) File() *os.File {
	if t.held == nil {
		if fd, err := unix.FcntlInt(uintptr(t.lock), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			t.held = os.NewFile(uintptr(fd), "lock of the network namespace")
		}
	}
	return t.held
}

// CloseLater makes Release close the socket of the protocol in the background, because closing it can block.
func (t *Lock) CloseLater(protocol int) {
	s := t.sockets[protocol]
	s.leave = true
	t.sockets[protocol] = s
}

// Release releases the lock and closes the sockets.
func (t *Lock) Release() {
	for _, s := range t.sockets {
		switch {
		case s.Socket == nil:
		case s.leave:
			go func() { _ = s.Close() }()
		default:
			_ = s.Close()
		}
	}
	if t.held != nil {
		_ = t.held.Close()
	}
	if t.lock >= 0 {
		_ = unix.Close(t.lock)
	}
}
