package packettest

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// inNamespace runs f on a thread in a network namespace. Sockets that f opens remain in the namespace. Goroutines that
// f starts run outside of it.
func inNamespace(ns int, f func() error) error {
	return namespace.OnThread(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the thread into the namespace. If the thread is already in the namespace, enter does nothing and needs no
// privileges.
func enter(ns int) error {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return fmt.Errorf("reading the thread's network namespace: %w", err)
	}
	if err := unix.Fstat(ns, &there); err != nil {
		return fmt.Errorf("reading the network namespace of file descriptor %d: %w", ns, err)
	}
	if here.Ino == there.Ino && here.Dev == there.Dev {
		return nil
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the network namespace: %w", err)
	}
	return nil
}

// namespaceOf returns a new file for the network namespace of fd, or of the calling thread if fd is 0 or less.
func namespaceOf(fd int) (*os.File, error) {
	if fd > 0 {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("duplicating the file descriptor %d of the network namespace: %w", fd, err)
		}
		return os.NewFile(uintptr(copied), "netns"), nil
	}
	return os.Open("/proc/thread-self/ns/net")
}

// runAs runs f so that the sockets that it opens belong to this user and group. It must be called on a locked thread in
// the network namespace.
func runAs(uid, gid uint32, f func() error) error {
	if uid == overflowID && gid == overflowID && isForeignNamespaceHere() {
		return f()
	}
	ownUID, ownGID := os.Geteuid(), os.Getegid()
	defer func() {
		_, _ = unix.SetfsuidRetUid(ownUID)
		_, _ = unix.SetfsgidRetGid(ownGID)
	}()
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	// These system calls do not report errors. With the invalid ID -1, they return the current ID.
	if got, _ := unix.SetfsgidRetGid(-1); got != int(gid) {
		return fmt.Errorf("sending a test packet as group %d: %w (CAP_SETGID)", gid, ErrNotPermitted)
	}
	if got, _ := unix.SetfsuidRetUid(-1); got != int(uid) {
		return fmt.Errorf("sending a test packet as user %d: %w (CAP_SETUID)", uid, ErrNotPermitted)
	}
	return f()
}

// Sender describes the users and groups as which the process can send packets.
type Sender struct {
	UID, GID uint32 // as rules in the namespace see them
	// AnyUser reports that packets can be sent as any user and group.
	AnyUser bool
}

// overflowID is the UID and GID that the kernel shows for users that are not mapped into a user namespace.
const overflowID = 65534

// SenderIn returns the users as which this process can send packets in a network namespace. If the network namespace
// belongs to another user namespace (a pod with hostUsers: false), IDs differ there, and this process does not know the
// mapping. Packets are then sent with the overflow IDs.
func SenderIn(netns int) Sender {
	ns, err := namespaceOf(netns)
	if err == nil {
		defer func() { _ = ns.Close() }()
		if isForeignNamespace(int(ns.Fd())) {
			return Sender{UID: overflowID, GID: overflowID}
		}
	}
	own := Sender{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	const stranger = 1<<31 - 3
	own.AnyUser = namespace.OnThread(func() error { return runAs(stranger, stranger, func() error { return nil }) }) == nil
	return own
}

// isForeignNamespace reports whether a network namespace belongs to a user namespace other than that of this process.
func isForeignNamespace(ns int) bool {
	owner, err := unix.IoctlRetInt(ns, unix.NS_GET_USERNS)
	if err != nil {
		return false // the owner is an ancestor of our user namespace, or the kernel does not support this ioctl
	}
	defer func() { _ = unix.Close(owner) }()
	var theirs, ours unix.Stat_t
	if unix.Fstat(owner, &theirs) != nil || unix.Stat("/proc/self/ns/user", &ours) != nil {
		return false
	}
	return theirs.Ino != ours.Ino
}

func isForeignNamespaceHere() bool {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	defer func() { _ = here.Close() }()
	return isForeignNamespace(int(here.Fd()))
}
