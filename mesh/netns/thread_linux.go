package netns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a new thread, which ends afterwards, and returns when f is done. f may change any state of the
// thread.
func OnThread(f func()) {
	onLockedThread(func() bool {
		f()
		return false
	})
}

// onLockedThread runs f exclusively on one thread. The thread is reused if f reports that it is unchanged. It never
// uses the main thread, which cannot end and represents the process in /proc.
func onLockedThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onLockedThread(f) // on another thread, while this one is locked
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}
