package nslock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Hold takes the lock of the namespace of a descriptor, of the calling thread's if it is 0 or less. After Patience it
// goes on without. The lock is gone when it is released, or with the process.
func Hold(ctx context.Context, netns int) (release func(), err error) {
	path := "/proc/thread-self/ns/net"
	if netns > 0 {
		path = fmt.Sprintf("/proc/self/fd/%d", netns) // opened anew: a lock belongs to an open file, not to a descriptor
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open the network namespace to lock it: %w", err)
	}
	if err := wait(ctx, int(f.Fd())); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("lock the network namespace: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// wait asks again and again: a thread that blocks in flock cannot be woken by a context.
func wait(ctx context.Context, fd int) error {
	end := time.NewTimer(Patience)
	defer end.Stop()
	for pause := 500 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
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
