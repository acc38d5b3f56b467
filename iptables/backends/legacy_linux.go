package backends

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/pilotfish-mesh/pilotfish/iptables/namespace"
)

// hasLegacyTables looks where the kernel lists the tables of the legacy flavour. To ask for one would make it.
func hasLegacyTables(netns int) (found bool, err error) {
	err = namespace.Do(netns, func() (err error) {
		runtime.LockOSThread() // /proc/thread-self is of this one
		defer runtime.UnlockOSThread()
		found, err = listsTables()
		return err
	})
	return found, err
}

func listsTables() (bool, error) {
	for _, name := range []string{"ip_tables_names", "ip6_tables_names"} {
		data, err := os.ReadFile("/proc/thread-self/net/" + name)
		// The kernel has no such flavour, or not yet; or the namespace is of a user namespace that had no users when both were
		// made (unshare --user --net), and then the list is for the machine's root alone.
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("which tables iptables-legacy has: %w", err)
		}
		if len(bytes.TrimSpace(data)) > 0 {
			return true, nil
		}
	}
	return false, nil
}
