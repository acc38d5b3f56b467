package analysis

import (
	"fmt"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkPolicy reports conditions of an AuthorizationPolicy that are not enforced as written. An unsupported condition
// never allows more requests, only fewer.
func (c *snapshotCheck) checkPolicy(p snapshot.Policy) {
	c.checkPolicyAction(p)
	c.checkTargets(p)
	for i, rule := range p.Spec.GetRules() {
		for j, when := range rule.GetWhen() {
			if !snapshot.IsKnownCondition(when.GetKey()) {
				c.reportNoEffect(p.Resource, fmt.Sprintf("spec.rules[%d].when[%d].key", i, j), when.GetKey(),
					"the condition is not supported: an ALLOW rule with it never matches, and a DENY rule ignores it",
					"use an attribute of Istio's AuthorizationPolicy conditions")
			}
		}
	}
}

// checkTargets reports targets of a policy that do not exist in this mesh.
func (c *snapshotCheck) checkTargets(p snapshot.Policy) {
	for i, ref := range config.PolicyTargets(p.Spec) {
		if !config.TargetsGateway(ref) {
			c.reportNoEffect(p.Resource, fmt.Sprintf("spec.targetRefs[%d]", i), ref.GetKind(), "this mesh has no waypoints, so the policy has no effect on a target of this kind",
				"select the workloads by label with spec.selector")
		}
	}
}
