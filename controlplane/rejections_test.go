package controlplane

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

func TestRemedyOfARejectionWithoutAKnownCauseNamesWhereToLook(t *testing.T) {
	for resource, remedy := range map[string]string{
		"outbound|80||a": "no document is known to be its cause: look at outbound|80||a",
		"":               "no document is known to be its cause: look at what `pilotfish proxy-status` and the log of the proxy's Envoy say of it",
	} {
		rejected := &xds.Rejection{Reason: "it is bad"}
		if resource != "" {
			rejected.Resources = []string{resource, "outbound|80||b"}
		}
		problems := rejections([]xds.ClientStatus{{Types: []xds.TypeStatus{{Rejected: rejected}}}}, nil)
		if len(problems) != 1 || problems[0].Remedy != remedy {
			t.Errorf("of %q it says %+v", resource, problems)
		}
	}
}
