package namespace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread in the namespace of a descriptor, or on the calling thread if the descriptor is 0 or less.
// Goroutines that f starts run in other namespaces.
func Do(fd int, f func() error) error {
	if fd <= 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := openCurrent()
	if err != nil {
		return doOnThread(fd, f)
	}
	defer unix.Close(home)
	// A thread that may enter its current namespace again can return to it. Other threads lack privileges over their
	// own namespace (a process of a user namespace that has not joined one of its network namespaces).
	if unix.Setns(home, unix.CLONE_NEWNET) != nil {
		return doOnThread(fd, f)
	}
	if err := enter(fd); err != nil {
		return err
	}
	defer returnTo(home)
	return f()
}

// socketNamespace is SIOCGSKNS of linux/sockios.h, which returns the network namespace of a socket.
const socketNamespace = 0x894c

// openCurrent opens the network namespace of the calling thread through a socket, because a lookup in /proc is five
// times slower.
func openCurrent() (int, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(s)
	return unix.IoctlRetInt(s, socketNamespace)
}

func enter(fd int) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("entering the network namespace: %w (needs CAP_SYS_ADMIN)", err)
	}
	return nil
}

// doOnThread calls f on a new thread that ends with it. This is slower than entering the namespace and returning.
func doOnThread(fd int, f func() error) error {
	return OnThread(func() error {
		if err := enter(fd); err != nil {
			return err
		}
		return f()
	})
}

// OnThread calls f on a thread that ends with it, so that f may change thread attributes. The thread is never the
// process's main thread, which cannot end and represents the process in /proc.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f) // on another thread, while this one is occupied
			return
		}
		done <- f()
	}()
	return <-done
}

// returnTo returns the thread to its namespace. This was permitted just before, so that it can fail only for lack of
// memory. The program then exits, because it must not continue in a foreign namespace, even if a caller recovers
// panics.
func returnTo(home int) {
	err := unix.Setns(home, unix.CLONE_NEWNET)
	for end := time.Now().Add(LockTimeout); errors.Is(err, unix.ENOMEM) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		err = unix.Setns(home, unix.CLONE_NEWNET)
	}
	if err != nil {
		go panic(fmt.Sprintf("leaving a network namespace: %v", err))
		select {}
	}
}

// tryLock binds the address, which belongs to the socket's namespace, and reports whether it was free.
func tryLock(socket int) (free bool, err error) {
	err = unix.Bind(socket, &unix.SockaddrUnix{Name: lockName})
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	return err == nil, err
}

// waitForLock retries until the address is free.
func waitForLock(ctx context.Context, socket int) error {
	end := time.NewTimer(LockTimeout)
	defer end.Stop()
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-time.After(pause):
		}
		if free, err := tryLock(socket); free || err != nil {
			return err
		}
	}
}
