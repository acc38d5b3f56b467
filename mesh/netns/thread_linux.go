package netns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a new thread and waits until f returns. The thread ends afterwards, so f may change any state of
// the thread.
func OnThread(f func()) {
	onLockedThread(func() bool {
		f()
		return false
	})
}

// onLockedThread runs f on a thread that no other goroutine uses meanwhile. f reports whether the state of the thread
// is unchanged. If it changed, the thread ends. f never runs on the main thread, because that thread cannot end and
// represents the process in /proc.
func onLockedThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onLockedThread(f) // runs on another thread, because this one is locked
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}
