package packets

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// inside runs f on a thread in a network namespace. Sockets that f makes stay in it; goroutines that f starts are not.
func inside(ns int, f func() error) error {
	return namespace.OnThread(func() error {
		if err := enter(ns); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the thread, unless it is there: that takes no privileges.
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

// namespaceOf gives a file of its own for the namespace.
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

// as runs f with another user and group as the owner of the sockets that it makes. It is called on a thread of its own, in
// the network namespace.
func as(uid, gid uint32, f func() error) error {
	if uid == nobody && gid == nobody && ofOthersHere() {
		return f()
	}
	ownUID, ownGID := os.Geteuid(), os.Getegid()
	defer func() {
		_, _ = unix.SetfsuidRetUid(ownUID)
		_, _ = unix.SetfsgidRetGid(ownGID)
	}()
	_, _ = unix.SetfsgidRetGid(int(gid))
	_, _ = unix.SetfsuidRetUid(int(uid))
	// These calls tell of no error; asked for an impossible id they say which one is in force.
	if got, _ := unix.SetfsgidRetGid(-1); got != int(gid) {
		return fmt.Errorf("send as group %d: %w (CAP_SETGID)", gid, ErrNotPermitted)
	}
	if got, _ := unix.SetfsuidRetUid(-1); got != int(uid) {
		return fmt.Errorf("send as user %d: %w (CAP_SETUID)", uid, ErrNotPermitted)
	}
	return f()
}

// Sender is who packets can be sent as.
type Sender struct {
	UID, GID uint32 // as rules in the namespace see them
	// Anybody says that packets can be sent as every other user and group too.
	Anybody bool
}

// nobody is what the kernel calls users who have no number in a user namespace.
const nobody = 65534

// SenderIn tells who this process can send packets as in a network namespace. In one that belongs to another user
// namespace, as a pod's with users of its own, ids are other ids there, and which is not known: what is sent is of nobody.
func SenderIn(netns int) Sender {
	ns, err := namespaceOf(netns)
	if err == nil {
		defer func() { _ = ns.Close() }()
		if ofOthers(int(ns.Fd())) {
			return Sender{UID: nobody, GID: nobody}
		}
	}
	own := Sender{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	const stranger = 1<<31 - 3
	own.Anybody = namespace.OnThread(func() error { return as(stranger, stranger, func() error { return nil }) }) == nil
	return own
}

// ofOthers tells whether a network namespace belongs to another user namespace than this process.
func ofOthers(ns int) bool {
	owner, err := unix.IoctlRetInt(ns, unix.NS_GET_USERNS)
	if err != nil {
		return false // one around ours, which has our ids in the end; or a kernel that does not tell
	}
	defer func() { _ = unix.Close(owner) }()
	var theirs, ours unix.Stat_t
	if unix.Fstat(owner, &theirs) != nil || unix.Stat("/proc/self/ns/user", &ours) != nil {
		return false
	}
	return theirs.Ino != ours.Ino
}

func ofOthersHere() bool {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return false
	}
	defer func() { _ = here.Close() }()
	return ofOthers(int(here.Fd()))
}
