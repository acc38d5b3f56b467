package mesh

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

func TestMeshIsReadyAfterProxiesAreSynced(t *testing.T) {
	quiet := xds.ClientStatus{Types: []xds.TypeStatus{{}, {}}}
	for name, c := range map[string]struct {
		status   controlplane.Status
		answered bool
	}{
		"no client is connected":        {controlplane.Status{}, true},
		"all clients have acknowledged": {controlplane.Status{Clients: []xds.ClientStatus{quiet, quiet}}, true},
		"a change is pending":           {controlplane.Status{Pending: true, Clients: []xds.ClientStatus{quiet}}, false},
		"a push is in progress":         {controlplane.Status{Clients: []xds.ClientStatus{quiet, {Pushing: true}}}, false},
		"an ACK is missing":             {controlplane.Status{Clients: []xds.ClientStatus{{Types: []xds.TypeStatus{{}, {Unanswered: 1}}}}}, false},
		"a client rejected a push":      {controlplane.Status{Clients: []xds.ClientStatus{{Types: []xds.TypeStatus{{Rejected: &xds.Rejection{}}}}}}, true},
	} {
		if got := isAcknowledged(c.status); got != c.answered {
			t.Errorf("%s: isAcknowledged returns %v", name, got)
		}
	}
}
