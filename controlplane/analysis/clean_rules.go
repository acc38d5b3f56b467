package analysis

import (
	"slices"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// cleanRules contains the VirtualServices in which a check found no problems, and the inputs of that check. The next
// check skips these VirtualServices unless their references have changed. It is immutable after the check.
type cleanRules struct {
	inputs     *snapshot.RuleInputs
	references map[*snapshot.VirtualService]ruleReferences
}

// ruleReferences describes the objects to which a VirtualService refers.
type ruleReferences struct {
	hosts             []string // full names
	subsets, gateways bool
}

func newCleanRules(s *snapshot.Snapshot) *cleanRules {
	return &cleanRules{inputs: s.RuleInputs(), references: make(map[*snapshot.VirtualService]ruleReferences, len(s.VirtualServices()))}
}

// recordClean records a rule in which this check found no problems.
func (c *snapshotCheck) recordClean(v *snapshot.VirtualService) {
	if v.HasDelegates() {
		return // the delegates may change
	}
	to := ruleReferences{hosts: slices.Clone(v.Hosts)}
	for d := range snapshot.Destinations(v.Spec) {
		to.hosts = append(to.hosts, c.s.Registry.ResolveHostname(d.Destination.GetHost(), v.Namespace))
		to.subsets = to.subsets || d.Destination.GetSubset() != ""
	}
	for _, g := range v.Gateways {
		to.gateways = to.gateways || g != snapshot.MeshGateway
	}
	c.clean.references[v] = to
}

// isStillClean reports whether the last check found no problems in a rule, and the rule's references have not changed
// since. In this case it also records the rule for the next check.
func (c *snapshotCheck) isStillClean(v *snapshot.VirtualService) bool {
	if c.before == nil {
		return false
	}
	now, former := c.clean.inputs, c.before.inputs
	to, isClean := c.before.references[v]
	if !isClean || !now.HasSameNames(former) || to.gateways && !now.HasSameGateways(former) || to.subsets && !now.HasSameDestinationRules(former) {
		return false
	}
	changes := c.changesSinceBefore()
	for _, host := range to.hosts {
		if changes.services[host] || to.subsets && changes.endpoints()[host] {
			return false
		}
	}
	c.clean.references[v] = to
	return true
}

// serviceChanges contains the hosts of services that changed since the last check.
type serviceChanges struct {
	services  map[string]bool        // hosts of services that were added, removed or changed
	endpoints func() map[string]bool // hosts of services whose endpoints changed
}

// changesSinceBefore returns the services that changed since the last check.
func (c *snapshotCheck) changesSinceBefore() *serviceChanges {
	if c.changes == nil {
		now, former := c.clean.inputs, c.before.inputs
		c.changes = &serviceChanges{
			services:  now.ChangedServices(former),
			endpoints: sync.OnceValue(func() map[string]bool { return now.ChangedEndpoints(former) }),
		}
	}
	return c.changes
}
