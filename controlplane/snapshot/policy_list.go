package snapshot

import (
	"iter"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Rules returns all rules and policies by kind, sorted by namespace and name.
func (s *Snapshot) Rules() iter.Seq[*config.Resource] {
	return func(yield func(*config.Resource) bool) {
		for _, kind := range indexed {
			for _, r := range s.resources[kind] {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// Resources returns the rules and policies of a kind, sorted by namespace and name. The caller must not change the list.
func (s *Snapshot) Resources(kind config.Kind) []*config.Resource { return s.resources[kind] }

// Inputs returns the inputs from which the snapshot was built, without the store.
func (s *Snapshot) Inputs() Inputs {
	return Inputs{
		Mesh: s.given, Domain: s.Domain, Virtual: s.Registry.Options().Virtual, Keys: s.keys, KeysByProxy: s.KeysByProxy,
		GatewayAccounts: s.gatewayAccounts, Endpoints: s.Registry.Options().Endpoints, StartsProxies: s.startsProxies,
	}
}

// Count returns the number of documents of a kind.
func (s *Snapshot) Count(kind config.Kind) int { return len(s.resources[kind]) }

// PortsWithoutEndpoints counts the service ports without endpoints. It ignores services with resolution Passthrough,
// which never have endpoints.
func (s *Snapshot) PortsWithoutEndpoints() int {
	n := 0
	for _, svc := range s.Registry.Services {
		if svc.Resolution == registry.Passthrough {
			continue
		}
		served := map[uint32]bool{}
		for _, e := range s.Registry.Endpoints(svc) {
			served[e.ServicePort] = true
		}
		for _, p := range svc.Ports {
			if !served[p.Number] {
				n++
			}
		}
	}
	return n
}
