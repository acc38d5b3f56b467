package snapshot

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// cleanRuleCache contains the VirtualServices without problems in one check, and the inputs of that check. Rules whose
// references have not changed are not checked again. It is immutable after the check. It does not reference the whole
// snapshot, because that would retain everything built from it.
type cleanRuleCache struct {
	naming     *nameVersion
	rules      *destinationRules
	gateways   *Gateway // the first element of the list, as its identity
	services   []*registry.Service
	registry   *registry.Registry
	instances  map[*registry.Service]*Instances
	peerAuth   *peerAuth
	references map[*VirtualService]ruleReferences
}

// ruleReferences describes what a VirtualService refers to.
type ruleReferences struct {
	hosts             []string // full names
	subsets, gateways bool
}

func newCleanRuleCache(s *Snapshot) *cleanRuleCache {
	return &cleanRuleCache{
		naming: s.index.naming, rules: s.index.destinationRules, gateways: unsafe.SliceData(s.gateways), services: s.Registry.Services,
		registry: s.Registry, instances: s.instances, peerAuth: s.peerAuth, references: make(map[*VirtualService]ruleReferences, len(s.index.virtualServices.all)),
	}
}

// recordClean records a rule without problems.
func (c *checker) recordClean(v *VirtualService) {
	if v.HasDelegates() {
		return // the delegates may change
	}
	to := ruleReferences{hosts: slices.Clone(v.Hosts)}
	for d := range Destinations(v.Spec) {
		to.hosts = append(to.hosts, c.s.Registry.ResolveHostname(d.Destination.GetHost(), v.Namespace))
		to.subsets = to.subsets || d.Destination.GetSubset() != ""
	}
	for _, g := range v.Gateways {
		to.gateways = to.gateways || g != MeshGateway
	}
	c.clean.references[v] = to
}

// isStillClean reports whether a rule had no problems and its references have not changed.
func (c *checker) isStillClean(v *VirtualService) bool {
	if c.before == nil || c.before.naming != c.w.naming {
		return false
	}
	to, sound := c.before.references[v]
	if !sound || to.gateways && c.before.gateways != c.clean.gateways || to.subsets && c.before.rules != c.clean.rules {
		return false
	}
	differs := c.changesSinceBefore()
	for _, host := range to.hosts {
		if differs.services[host] || to.subsets && differs.endpoints()[host] {
			return false
		}
	}
	c.clean.references[v] = to
	return true
}

// serviceChanges lists the hosts of services that changed since the last check.
type serviceChanges struct {
	services  map[string]bool        // hosts of services that were added, removed or changed
	endpoints func() map[string]bool // hosts of services whose endpoints changed
}

// changesSinceBefore returns the difference to the last check.
func (c *checker) changesSinceBefore() *serviceChanges {
	if c.changes == nil {
		c.changes = &serviceChanges{services: map[string]bool{}, endpoints: sync.OnceValue(c.hostsWithChangedEndpoints)}
		for _, svc := range symmetricDifference(c.before.services, c.s.Registry.Services) {
			for known := range svc.WithAliases() {
				c.changes.services[known.Hostname] = true
			}
		}
	}
	return c.changes
}

func (c *checker) hostsWithChangedEndpoints() map[string]bool {
	hosts := map[string]bool{}
	if c.before.registry == c.s.Registry && c.before.peerAuth == c.s.peerAuth {
		return hosts
	}
	for _, svc := range c.s.Registry.Services {
		if c.before.instances[svc] != c.s.Instances(svc) {
			for known := range svc.WithAliases() {
				hosts[known.Hostname] = true
			}
		}
	}
	return hosts
}
