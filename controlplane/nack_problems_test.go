package controlplane

import (
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

func TestRemedyOfRejectionWithoutKnownCause(t *testing.T) {
	for resource, remedy := range map[string]string{
		"outbound|80||a": "the control plane found no document that may be the cause: check outbound|80||a",
		"":               "the control plane found no document that may be the cause: check `pilotfish proxy-status` and the log of the proxy's Envoy",
	} {
		rejected := &xds.Rejection{Reason: "it is bad"}
		if resource != "" {
			rejected.Resources = []string{resource, "outbound|80||b"}
		}
		problems := nackProblems([]xds.ClientStatus{{Types: []xds.TypeStatus{{Rejected: rejected}}}}, nil)
		if len(problems) != 1 || problems[0].Remedy != remedy {
			t.Errorf("problems for resource %q are %+v", resource, problems)
		}
	}
}
