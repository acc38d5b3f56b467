package timerfd

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Sleep waits until so much time has passed by the clock on the wall, or the context ends. Unlike timers it counts the time
// that a machine was suspended, and it ends early when the clock is set: who sleeps until a certain time looks again then.
func Sleep(ctx context.Context, d time.Duration) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		doze(ctx, d)
		return
	}
	until := unix.ItimerSpec{Value: unix.NsecToTimespec(time.Now().Add(max(d, 1)).UnixNano())}
	err = unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &until, nil)
	file := os.NewFile(uintptr(fd), "timerfd")
	defer func() { _ = file.Close() }()
	if err != nil {
		doze(ctx, d)
		return
	}
	defer context.AfterFunc(ctx, func() { _ = file.Close() })()
	_, _ = file.Read(make([]byte, 8)) // ends when it is time, or the clock was set, or the file was closed
}
