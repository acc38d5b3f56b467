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
		"no client is connected":   {controlplane.Status{}, true},
		"all have answered":        {controlplane.Status{Clients: []xds.ClientStatus{quiet, quiet}}, true},
		"a change waits":           {controlplane.Status{Pending: true, Clients: []xds.ClientStatus{quiet}}, false},
		"a push is under way":      {controlplane.Status{Clients: []xds.ClientStatus{quiet, {Pushing: true}}}, false},
		"an answer is outstanding": {controlplane.Status{Clients: []xds.ClientStatus{{Types: []xds.TypeStatus{{}, {Unanswered: 1}}}}}, false},
		"a push was refused":       {controlplane.Status{Clients: []xds.ClientStatus{{Types: []xds.TypeStatus{{Rejected: &xds.Rejection{}}}}}}, true},
	} {
		if got := isAcknowledged(c.status); got != c.answered {
			t.Errorf("%s: answered is %v", name, got)
		}
	}
}
