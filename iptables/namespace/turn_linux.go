package namespace

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/kernel"
)

// Turn is a turn at a namespace: its lock, and netlink sockets in it that those who work in the turn share. It is for one
// goroutine.
type Turn struct {
	lock    int
	held    *os.File // the lock again, for others
	sockets map[int]socket
}

type socket struct {
	*kernel.Socket
	failure error
	leave   bool // closing it is not waited for
}

// Take waits for the lock of the namespace of a descriptor; 0 or less is that of the calling thread. After Patience it
// goes on without. The lock is gone when the turn ends, or with the process. What else is to be opened in the namespace is
// opened by the functions, when the lock is there: without having to wait, on one visit to the namespace.
func Take(ctx context.Context, fd int, open ...func()) (*Turn, error) {
	t := &Turn{lock: -1, sockets: map[int]socket{}}
	err := t.take(ctx, fd, open)
	if err != nil {
		t.End()
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	return t, nil
}

func (t *Turn) take(ctx context.Context, fd int, open []func()) error {
	deadline, _ := ctx.Deadline()
	openAll := func() error {
		for _, f := range open {
			f()
		}
		return nil
	}
	free := false
	err := Do(fd, func() (err error) {
		if t.lock, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		free, err = try(t.lock)
		for _, protocol := range []int{unix.NETLINK_NETFILTER, unix.NETLINK_ROUTE} {
			s, failure := kernel.Dial(protocol, deadline)
			t.sockets[protocol] = socket{Socket: s, failure: failure}
		}
		if !free || err != nil {
			return err
		}
		return openAll()
	})
	if free || err != nil {
		return err
	}
	if err := wait(ctx, t.lock); err != nil {
		return err
	}
	return Do(fd, openAll)
}

// Socket is that of a protocol, NETLINK_NETFILTER or NETLINK_ROUTE.
func (t *Turn) Socket(protocol int) (*kernel.Socket, error) {
	s := t.sockets[protocol]
	return s.Socket, s.failure
}

// Held is the lock, for a program that is started in the turn to inherit: what it does belongs to the turn, which is not
// another's before the program has ended, although this process is killed. It is nil where there is none.
func (t *Turn) Held() *os.File {
	if t.held == nil {
		if fd, err := unix.FcntlInt(uintptr(t.lock), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			t.held = os.NewFile(uintptr(fd), "lock of the network namespace")
		}
	}
	return t.held
}

// Leave has the end of the turn not wait until the socket of a protocol is closed.
func (t *Turn) Leave(protocol int) {
	s := t.sockets[protocol]
	s.leave = true
	t.sockets[protocol] = s
}

// End gives lock and sockets back.
func (t *Turn) End() {
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
