//go:build !linux

package netns

import "runtime"

// OnThread runs f on a new thread.
func OnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
