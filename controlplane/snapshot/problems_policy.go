package snapshot

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// policy warns of what an AuthorizationPolicy says and is not enforced as written. What cannot be enforced never opens a
// door: it only closes more.
func (c *checker) policy(p Policy) {
	c.policyAction(p)
	c.targets(p.Resource, p.Spec)
	for i, rule := range p.Spec.GetRules() {
		for j, when := range rule.GetWhen() {
			if !KnownCondition(when.GetKey()) {
				c.warn(p.Resource, fmt.Sprintf("spec.rules[%d].when[%d].key", i, j), when.GetKey(),
					"the condition is not supported: an ALLOW rule with it never matches, a DENY rule matches without regard to it",
					"use an attribute of Istio's AuthorizationPolicy conditions")
			}
		}
	}
}

// targets warns of what a policy is for and nothing here is.
func (c *checker) targets(r *config.Resource, p targeted) {
	refs := p.GetTargetRefs()
	if ref := p.GetTargetRef(); ref != nil {
		refs = append(refs[:len(refs):len(refs)], ref)
	}
	for i, ref := range refs {
		if !TargetsGateway(ref) {
			c.warn(r, fmt.Sprintf("spec.targetRefs[%d]", i), ref.GetKind(), "there are no waypoints here: the policy has no effect on such a target",
				"select the workloads by label with spec.selector")
		}
	}
}
