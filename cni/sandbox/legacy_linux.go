package sandbox

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netns"
)

// HasLegacyNAT says whether the namespace has the nat table of the old iptables, of either family, which nftables does not
// show.
func (s *Sandbox) HasLegacyNAT() (has bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = s.within(func() {
			for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
				text, err := os.ReadFile("/proc/thread-self/net/" + file)
				if err != nil {
					continue // the kernel has not even that module
				}
				has = has || slices.Contains(strings.Fields(string(text)), "nat")
			}
		})
	}()
	<-done
	return has, err
}

// within runs f on a thread in the namespace. The thread comes back from it: one that is left to end with its goroutine may
// be the process's first, which does not end and would keep the namespace alive. Only one that cannot come back is left.
func (s *Sandbox) within(f func()) error {
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer func() { _ = before.Close() }()
	if err := netns.Set(netns.NsHandle(s.NetNS.Fd())); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	f()
	if err := netns.Set(before); err != nil {
		return errors.Join(errors.New("a thread could not leave a pod's network namespace"), err)
	}
	runtime.UnlockOSThread()
	return nil
}
