package snapshot

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Gateway is one Gateway.
type Gateway struct {
	*config.Resource
	Spec *networking.Gateway
}

// FullName is the name by which VirtualServices bind to it: "namespace/name".
func (g Gateway) FullName() string { return g.Namespace + "/" + g.Name }

// Gateways are the gateways that a router with these labels serves, the oldest first: where two claim a port and a host,
// the first has it.
func (s *Snapshot) Gateways(labels map[string]string) []Gateway {
	var out []Gateway
	for _, g := range s.gateways {
		if Selects(g.Spec.GetSelector(), labels) {
			out = append(out, g)
		}
	}
	return out
}

func newGateways(resources []*config.Resource) []Gateway {
	var out []Gateway
	for _, r := range oldestFirst(resources) {
		out = append(out, Gateway{Resource: r, Spec: r.Spec.(*networking.Gateway)})
	}
	return out
}
