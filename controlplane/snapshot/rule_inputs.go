package snapshot

import (
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// RuleInputs identifies the parts of a snapshot to which VirtualServices refer. Unlike the snapshot, it does not keep
// the resources in memory that were built from the snapshot.
type RuleInputs struct {
	naming    *nameVersion
	rules     *destinationRules
	gateways  *Gateway // the first element of the list, as its identity
	registry  *registry.Registry
	instances map[*registry.Service]*Instances
	peerAuth  *peerAuth
}

// RuleInputs returns the inputs of the snapshot's VirtualServices.
func (s *Snapshot) RuleInputs() *RuleInputs {
	return &RuleInputs{
		naming: s.index.naming, rules: s.index.destinationRules, gateways: unsafe.SliceData(s.gateways), registry: s.Registry,
		instances: s.instances, peerAuth: s.peerAuth,
	}
}

// HasSameNames reports whether the host names in all documents resolve to the same services as for former.
func (in *RuleInputs) HasSameNames(former *RuleInputs) bool { return in.naming == former.naming }

// HasSameGateways reports whether in and former have the same Gateways.
func (in *RuleInputs) HasSameGateways(former *RuleInputs) bool { return in.gateways == former.gateways }

// HasSameDestinationRules reports whether in and former have the same DestinationRules.
func (in *RuleInputs) HasSameDestinationRules(former *RuleInputs) bool {
	return in.rules == former.rules
}

// ChangedServices returns the hosts of the services that were added, removed or changed since former, including aliases.
func (in *RuleInputs) ChangedServices(former *RuleInputs) map[string]bool {
	hosts := map[string]bool{}
	for _, svc := range symmetricDifference(former.registry.Services, in.registry.Services) {
		addHosts(hosts, svc)
	}
	return hosts
}

// ChangedEndpoints returns the hosts of the services whose endpoints changed since former, including aliases.
func (in *RuleInputs) ChangedEndpoints(former *RuleInputs) map[string]bool {
	hosts := map[string]bool{}
	if in.registry == former.registry && in.peerAuth == former.peerAuth {
		return hosts
	}
	for _, svc := range in.registry.Services {
		if former.instances[svc] != in.instances[svc] {
			addHosts(hosts, svc)
		}
	}
	return hosts
}

func addHosts(hosts map[string]bool, svc *registry.Service) {
	for known := range svc.WithAliases() {
		hosts[known.Hostname] = true
	}
}
