package packets

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread that ends with it, so that f may change what belongs to a thread.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		result <- f()
	}()
	return <-result
}

// inside runs f on a thread in a network namespace. Sockets that f makes stay in it; goroutines that f starts are not.
func inside(ns int, f func() error) error {
	return onThread(func() error {
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

// as runs f with another user and group as the owner of the sockets that it makes. It is called on a thread of its own.
func as(uid, gid uint32, f func() error) error {
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

// CanSendAs tells whether this process may send packets as another user and group.
func CanSendAs(uid, gid uint32) bool {
	return onThread(func() error { return as(uid, gid, func() error { return nil }) }) == nil
}
