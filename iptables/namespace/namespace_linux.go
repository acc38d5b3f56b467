package namespace

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread that is in the namespace of a descriptor; on the calling thread if it is 0 or less. Goroutines
// that f starts are elsewhere.
func Do(fd int, f func() error) error {
	if fd <= 0 {
		return f()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := here()
	if err != nil {
		return elsewhere(fd, f)
	}
	defer unix.Close(home)
	// Who may enter where it is already may come back. Others lack privileges over their own namespace alone (a process
	// of a user namespace that has joined no network namespace of it).
	if unix.Setns(home, unix.CLONE_NEWNET) != nil {
		return elsewhere(fd, f)
	}
	if err := enter(fd); err != nil {
		return err
	}
	defer comeBack(home)
	return f()
}

// socketNamespace is SIOCGSKNS of linux/sockios.h, which gives the network namespace of a socket.
const socketNamespace = 0x894c

// here opens the network namespace of the calling thread: of a socket, as to walk /proc takes the kernel five times as long.
func here() (int, error) {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(s)
	return unix.IoctlRetInt(s, socketNamespace)
}

func enter(fd int) error {
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace: %w (it needs CAP_SYS_ADMIN)", err)
	}
	return nil
}

// elsewhere calls f on a thread that ends with it. To have another thread work costs more than entering and coming back.
func elsewhere(fd int, f func() error) error {
	return OnThread(func() error {
		if err := enter(fd); err != nil {
			return err
		}
		return f()
	})
}

// OnThread calls f on a thread that ends with it, so that f may change what belongs to a thread. It is never the process's
// first: that one cannot end, and is what all of the process is taken for in /proc.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f) // on another one, while this one is kept from it
			return
		}
		done <- f()
	}()
	return <-done
}

// comeBack has the thread be where it was. It was allowed to just before, so that only memory can be wanting. A program that
// would go on in somebody else's namespace had better not go on, whoever recovers from panics in it.
func comeBack(home int) {
	err := unix.Setns(home, unix.CLONE_NEWNET)
	for end := time.Now().Add(Patience); errors.Is(err, unix.ENOMEM) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
		err = unix.Setns(home, unix.CLONE_NEWNET)
	}
	if err != nil {
		go panic(fmt.Sprintf("come back from a network namespace: %v", err))
		select {}
	}
}

// try asks for the name, which belongs to the namespace that the socket was made in.
func try(socket int) (free bool, err error) {
	err = unix.Bind(socket, &unix.SockaddrUnix{Name: lockName})
	if errors.Is(err, unix.EADDRINUSE) {
		return false, nil
	}
	return err == nil, err
}

// wait asks again and again.
func wait(ctx context.Context, socket int) error {
	end := time.NewTimer(Patience)
	defer end.Stop()
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-time.After(pause):
		}
		if free, err := try(socket); free || err != nil {
			return err
		}
	}
}
