package xtables

import (
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
)

// runInside runs f on a thread in the namespace. If the thread cannot return to its own namespace, it ends.
func (n namespace) runInside(f func() error) error {
	if n.fd <= 0 {
		return f()
	}
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- fmt.Errorf("the thread's own network namespace: %w", err)
			return
		}
		defer home.Close()
		if err := netns.Set(netns.NsHandle(n.fd)); err != nil {
			runtime.UnlockOSThread()
			result <- fmt.Errorf("entering the network namespace: %w; it needs the capability SYS_ADMIN", err)
			return
		}
		err = f()
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}
