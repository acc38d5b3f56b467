package timerfd

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// kernelAlarm is one by a timerfd, which is waited for like a connection.
type kernelAlarm struct{ file *os.File }

func newKernelAlarm(call func()) (Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	a := kernelAlarm{os.NewFile(uintptr(fd), "timerfd")}
	go a.run(call)
	return a, nil
}

func (a kernelAlarm) run(call func()) {
	var times [8]byte
	for {
		if _, err := a.file.Read(times[:]); err != nil {
			return
		}
		call()
	}
}

func (a kernelAlarm) Set(after time.Duration) {
	conn, err := a.file.SyscallConn()
	if err != nil {
		return
	}
	// A time of zero would switch it off.
	at := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(after, 1)))}
	_ = conn.Control(func(fd uintptr) { _ = unix.TimerfdSettime(int(fd), 0, &at, nil) }) // fails when it is closed only
}

func (a kernelAlarm) Close() { _ = a.file.Close() }
