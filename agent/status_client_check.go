package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
)

// Reasons for which the status port refuses requests and debug pages to a client.
var (
	errFromEnvoy     = errors.New("requests that arrive through Envoy are refused here; use `pilotfish-agent request`")
	errUnknownClient = errors.New("the process that sent the request cannot be determined, and may be Envoy; use `pilotfish-agent request`")
)

// checkCaller returns an error if the client of a status port connection may not send requests or read debug pages.
// Envoy is not allowed to: otherwise users who can configure an endpoint of the mesh could send such requests through
// Envoy. In a pod, operators' commands run as the same user as Envoy. Envoy is therefore identified by its sockets, and
// by its user only if its sockets are not visible.
func (a *Agent) checkCaller(client, server netip.AddrPort) error {
	a.callerLookup.Lock() // otherwise Envoy's clients could cause many concurrent lookups
	defer a.callerLookup.Unlock()
	c, err := portowner.FindConnection(client, server)
	if err != nil {
		return errUnknownClient
	}
	if a.Config.StatusUsers == config.OwnUser && c.UID != 0 && c.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("requests of user %d are refused here: run this command as the agent's user or as root", c.UID)
	}
	if a.isEnvoySocket(c) {
		return errFromEnvoy
	}
	// isEnvoySocket misses the socket if Envoy closed it during the lookup.
	if again, err := portowner.FindConnection(client, server); err != nil || again != c {
		return errUnknownClient
	}
	return nil
}

// isEnvoySocket reports whether one of the agent's Envoys has opened the socket. If the agent cannot read the list of
// an Envoy's open files, it compares the socket's user with Envoy's.
func (a *Agent) isEnvoySocket(c portowner.Connection) bool {
	return slices.ContainsFunc(a.listEnvoyProcesses(), func(pid int) bool {
		open, err := c.IsOpenIn(pid)
		return open || err != nil && c.UID == envoyUID(a.Config)
	})
}

// envoyUID returns the UID of Envoy.
func envoyUID(c *config.Config) uint32 {
	if user := c.Envoy.User; user != nil {
		return user.UID
	}
	return uint32(os.Geteuid())
}

// listEnvoyProcesses returns the PIDs of the agent's Envoys and of the processes that they started.
func (a *Agent) listEnvoyProcesses() []int {
	pids := a.envoyPIDs.list()
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && a.isEnvoy(int32(pid)) {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, cmp.Compare[int])
	return slices.Compact(pids)
}
