package mesh

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// withRemedy adds a remedy to a file system error.
func withRemedy(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: the disk is full: free some space, or choose another directory with XDG_RUNTIME_DIR, --runtime-dir or --state-dir", err)
	case errors.Is(err, syscall.EFBIG):
		return fmt.Errorf("%w: the limit of file sizes is reached: raise the limit (`ulimit -f`)", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: choose another directory with XDG_RUNTIME_DIR, --runtime-dir or --state-dir", err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: make the directory writable for this user, or choose another one with XDG_RUNTIME_DIR, --runtime-dir or --state-dir", err)
	}
	return err
}

// bindRemedy returns a remedy if one of lines reports that an address is in use, and "" otherwise. The usual cause is
// the instance's own application, which listens on all addresses.
func bindRemedy(i *topology.Instance, lines ...string) string {
	for _, line := range lines {
		line = strings.ToLower(line)
		if strings.Contains(line, "address already in use") || strings.Contains(line, "eaddrinuse") || strings.Contains(line, "cannot bind") {
			return explainBusyPort(i)
		}
	}
	return ""
}

// explainBusyPort returns the remedy for an instance whose application, or sidecar, cannot listen on a port.
func explainBusyPort(i *topology.Instance) string {
	own := fmt.Sprintf("the application must listen on ${APP_ADDRESS} (here %s; the environment variable PILOTFISH_APP_ADDRESS), "+
		"not on all addresses, because ", i.App)
	switch {
	case i.Captured && i.Workload.NoSidecar:
		return "another process of the application listens on this port"
	case i.Captured:
		return "the application must not listen on ports 15000 to 15090, which its sidecar uses"
	case i.Workload.NoSidecar:
		return own + "other workloads may use the same port"
	}
	return own + fmt.Sprintf("its sidecar listens on the same ports at %s", i.Proxy)
}
