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
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(home)
			err = unix.Setns(fd, unix.CLONE_NEWNET)
		}
		if err != nil {
			done <- fmt.Errorf("enter the network namespace: %w (it needs CAP_SYS_ADMIN)", err)
			return
		}
		err = f()
		if unix.Setns(home, unix.CLONE_NEWNET) == nil { // else the thread ends with this goroutine
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Lock takes a turn of which nothing but the lock is needed.
func Lock(ctx context.Context, fd int) (release func(), err error) {
	t, err := Take(ctx, fd)
	if err != nil {
		return nil, err
	}
	return t.End, nil
}

// wait asks again and again for the name, which belongs to the namespace that the socket was made in.
func wait(ctx context.Context, socket int) error {
	end := time.NewTimer(Patience)
	defer end.Stop()
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Bind(socket, &unix.SockaddrUnix{Name: lockName})
		if err == nil || !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-end.C:
			return nil
		case <-time.After(pause):
		}
	}
}
