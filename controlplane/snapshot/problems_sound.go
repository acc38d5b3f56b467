package snapshot

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// soundness is which VirtualServices a comparison found nothing wrong with, and what it compared them with: those that lead to
// what is as it was need no second look. It is not changed once the comparison has ended. Of its snapshot it holds no more than
// this, since snapshots hold what was made of them.
type soundness struct {
	naming    *naming
	rules     *destinationRules
	gateways  *Gateway // where the list is
	services  []*registry.Service
	registry  *registry.Registry
	instances map[*registry.Service]*Instances
	peerAuth  *peerAuth
	to        map[*VirtualService]leads
}

// leads is what a VirtualService is for and leads to.
type leads struct {
	hosts             []string // full names
	subsets, gateways bool
}

func newSoundness(s *Snapshot) *soundness {
	return &soundness{
		naming: s.world.naming, rules: s.world.destinationRules, gateways: unsafe.SliceData(s.gateways), services: s.world.services,
		registry: s.Registry, instances: s.instances, peerAuth: s.peerAuth, to: make(map[*VirtualService]leads, len(s.world.virtualServices.all)),
	}
}

// isSound notes that nothing is wrong with a rule.
func (c *checker) isSound(v *VirtualService) {
	if v.delegates() {
		return // what these say may change
	}
	to := leads{hosts: slices.Clone(v.Hosts)}
	for d := range destinations(v.Spec) {
		to.hosts = append(to.hosts, c.w.resolve(d.destination.GetHost(), v.Namespace))
		to.subsets = to.subsets || d.destination.GetSubset() != ""
	}
	for _, g := range v.Gateways {
		to.gateways = to.gateways || g != MeshGateway
	}
	c.sound.to[v] = to
}

// stillSound says that nothing was wrong with a rule, and that all it leads to is as it was.
func (c *checker) stillSound(v *VirtualService) bool {
	if c.before == nil || c.before.naming != c.w.naming {
		return false
	}
	to, sound := c.before.to[v]
	if !sound || to.gateways && c.before.gateways != c.sound.gateways || to.subsets && c.before.rules != c.sound.rules {
		return false
	}
	differs := c.differing()
	for _, host := range to.hosts {
		if differs.services[host] || to.subsets && differs.endpoints()[host] {
			return false
		}
	}
	c.sound.to[v] = to
	return true
}

// difference is what differs between a comparison and the one before.
type difference struct {
	services  map[string]bool        // hosts of services that came, went or changed
	endpoints func() map[string]bool // hosts of services whose endpoints changed
}

// differing is what differs from the last comparison.
func (c *checker) differing() *difference {
	if c.differs == nil {
		c.differs = &difference{services: map[string]bool{}, endpoints: sync.OnceValue(c.movedHosts)}
		for _, svc := range apart(c.before.services, c.w.services) {
			for known := range svc.WithAliases() {
				c.differs.services[known.Hostname] = true
			}
		}
	}
	return c.differs
}

func (c *checker) movedHosts() map[string]bool {
	hosts := map[string]bool{}
	if c.before.registry == c.s.Registry && c.before.peerAuth == c.s.peerAuth {
		return hosts
	}
	for _, svc := range c.w.services {
		if c.before.instances[svc] != c.s.instances[svc] {
			for known := range svc.WithAliases() {
				hosts[known.Hostname] = true
			}
		}
	}
	return hosts
}
