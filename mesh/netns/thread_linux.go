package netns

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread of its own, which ends with it, and returns when that is done. f may change the thread as it
// likes.
func OnThread(f func()) {
	onThread(func() bool {
		f()
		return false
	})
}

// onThread runs f on a thread that nothing else runs on meanwhile. It goes on to be used if f says that it is as it was.
// It is never the main thread: that one cannot end, and is what all of the process is taken for in /proc.
func onThread(f func() (clean bool)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onThread(f) // on another one, while this one is kept from it
			runtime.UnlockOSThread()
			return
		}
		if f() {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}
