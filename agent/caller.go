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

// Reasons to refuse requests and debug pages to a client of the status port.
var (
	errFromEnvoy     = errors.New("requests that arrive through Envoy are refused here; use `pilotfish-agent request`")
	errUnknownClient = errors.New("the process that sent the request cannot be determined, and may be Envoy; use `pilotfish-agent request`")
)

// checkCaller returns an error if the client of a status port connection may not send requests or read debug pages.
// Envoy may not: a client that can configure an endpoint could send requests through it. In a pod, Envoy runs as the user
// of operators' commands. It is therefore identified by its sockets, and by its user only where its sockets are not
// visible.
func (a *Agent) checkCaller(client, server netip.AddrPort) error {
	a.callerLookup.Lock() // limits Envoy's clients to one lookup at a time
	defer a.callerLookup.Unlock()
	c, err := portowner.FindConnection(client, server)
	if err != nil {
		return errUnknownClient
	}
	if a.Config.StatusUsers == config.OwnUser && c.UID != 0 && c.UID != uint32(os.Geteuid()) {
		return fmt.Errorf("requests of user %d are refused here: run this as the agent's user or as root", c.UID)
	}
	if a.isEnvoySocket(c) {
		return errFromEnvoy
	}
	// If Envoy closed the socket during the lookup, it was not found among Envoy's files.
	if again, err := portowner.FindConnection(client, server); err != nil || again != c {
		return errUnknownClient
	}
	return nil
}

// isEnvoySocket reports whether one of the agent's Envoys has the socket open. If the files of an Envoy are not
// visible, it compares the user.
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
