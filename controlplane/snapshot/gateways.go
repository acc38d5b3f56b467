package snapshot

import (
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Gateway is a document of kind Gateway.
type Gateway struct {
	*config.Resource
	Spec *networking.Gateway
}

// FullName returns the name by which VirtualServices refer to the Gateway: "namespace/name".
func (g Gateway) FullName() string { return g.Namespace + "/" + g.Name }

// Gateways returns the Gateways that select a router with the labels, oldest first. If two Gateways have the same port
// and host, the first one takes precedence.
func (s *Snapshot) Gateways(labels map[string]string) []Gateway {
	var out []Gateway
	for _, g := range s.gateways {
		if Selects(g.Spec.GetSelector(), labels) {
			out = append(out, g)
		}
	}
	return out
}

// AllGateways returns the Gateways of all routers, oldest first. The caller must not change the list.
func (s *Snapshot) AllGateways() []Gateway { return s.gateways }

func newGateways(resources []*config.Resource) []Gateway {
	var out []Gateway
	for _, r := range config.SortByAge(resources) {
		out = append(out, Gateway{Resource: r, Spec: r.Spec.(*networking.Gateway)})
	}
	return out
}
