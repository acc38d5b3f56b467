package packettest

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// inNamespace runs f on a thread in a network namespace. Sockets that f opens stay in it; goroutines that f starts run
// outside.
func inNamespace(ns int, f func() error) error {
	return namespace.OnThread(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the thread into the namespace. If it is already there, enter does nothing and needs no privileges.
func enter(ns int) error {
	var here, there unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return fmt.Errorf("the thread's network namespace: %w", err)
	}
	if err := unix.Fstat(ns, &there); err != nil {
		return fmt.Errorf("the network namespace with file descriptor %d: %w", ns, err)
	}
	if here.Ino == there.Ino && here.Dev == there.Dev {
		return nil
	}
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w", err)
	}
	return nil
}

// namespaceOf returns a new file for the namespace.
func namespaceOf(fd int) (*os.File, error) {
	if fd > 0 {
		copied, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("the network namespace with file descriptor %d: %w", fd, err)
		}
		return os.NewFile(uintptr(copied), "netns"), nil
	}
	return os.Open("/proc/thread-self/ns/net")
}

// runAs runs f so that the sockets that it opens belong to the user and group. It must be called on a locked thread in
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
	// These calls report no error. Called with an invalid ID they return the current one.
	if got, _ := unix.SetfsgidRetGid(-1); got != int(gid) {
		return fmt.Errorf("send as group %d: %w (CAP_SETGID)", gid, ErrNotPermitted)
	}
	if got, _ := unix.SetfsuidRetUid(-1); got != int(uid) {
		return fmt.Errorf("send as user %d: %w (CAP_SETUID)", uid, ErrNotPermitted)
	}
	return f()
}

// Sender lists the users and groups as which packets can be sent.
type Sender struct {
	UID, GID uint32 // as rules in the namespace match them
	// AnyUser: packets can also be sent as every other user and group.
	AnyUser bool
}

// overflowID is the kernel's overflow UID and GID, for users that are not mapped into a user namespace.
const overflowID = 65534

// SenderIn returns the users as which this process can send packets in a network namespace. If the namespace belongs to
// another user namespace, such as that of a pod with its own users, IDs differ there and the mapping is unknown.
// Packets are then sent with the overflow IDs.
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

// isForeignNamespace reports whether a network namespace belongs to another user namespace than this process.
func isForeignNamespace(ns int) bool {
	owner, err := unix.IoctlRetInt(ns, unix.NS_GET_USERNS)
	if err != nil {
		return false // an ancestor of our user namespace, or a kernel without this ioctl
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
