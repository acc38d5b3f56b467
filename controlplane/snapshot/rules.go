package snapshot

import (
	"iter"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Rules are all documents of the snapshot that are rules and policies, kind by kind, each by namespace and name.
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

// Inputs are what the snapshot was built from, but for the store.
func (s *Snapshot) Inputs() Inputs {
	return Inputs{Mesh: s.given, Domain: s.Domain, Virtual: s.Registry.Options().Virtual, Keys: s.keys, KeysByProxy: s.KeysByProxy}
}

// Count is how many rules and policies of a kind there are.
func (s *Snapshot) Count(kind config.Kind) int { return len(s.resources[kind]) }

// PortsWithoutEndpoints counts the ports of services that are served nowhere.
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
