package namespace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread in the namespace with the file descriptor fd, or on the calling thread if fd is 0 or less.
// Goroutines that f starts do not run in that namespace.
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
	// If the thread may enter its current namespace, it can return there later. Otherwise the thread has no privileges
	// over that namespace: the process joined a user namespace, but none of the network namespaces that belong to it.
	if unix.Setns(home, unix.CLONE_NEWNET) != nil {
		return doOnThread(fd, f)
	}
	if err := enter(fd); err != nil {
		return err
	}
	defer returnTo(home)
	return f()
}

// socketNamespace is SIOCGSKNS of linux/sockios.h. This ioctl returns the network namespace of a socket.
const socketNamespace = 0x894c

// openCurrent opens the network namespace of the calling thread. It uses a socket, because /proc is five times slower.
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

// doOnThread calls f in the namespace on a new thread, which exits when f returns. This is slower than entering the
// namespace on the current thread and returning.
func doOnThread(fd int, f func() error) error {
	return OnThread(func() error {
		if err := enter(fd); err != nil {
			return err
		}
		return f()
	})
}

// OnThread calls f on a thread that exits when f returns, so that f may change attributes of the thread. That thread is
// never the process's main thread, because the main thread cannot exit and represents the process in /proc.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits together with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f) // uses another thread, because this goroutine occupies the main thread
			return
		}
		done <- f()
	}()
	return <-done
}

// returnTo moves the thread back to its namespace. Do has checked the permission, so this fails only if memory is
// exhausted. On failure, the program panics in a new goroutine, where no caller can recover: the program must not
// continue in the wrong namespace.
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

// tryLock binds the socket to lockName in the socket's namespace. It returns false if another process holds the lock.
func tryLock(socket int) (free bool, err error) {
	err = unix.Bind(socket, &unix.SockaddrUnix{Name: lockName})
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	return err == nil, err
}

// waitForLock repeats tryLock until it succeeds or LockTimeout has passed.
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
