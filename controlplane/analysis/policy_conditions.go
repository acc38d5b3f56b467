package analysis

import (
	"fmt"

	networking "istio.io/api/networking/v1alpha3"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkPolicy reports conditions of an AuthorizationPolicy that are not enforced as written. Because of an unsupported
// condition, proxies never allow more requests than intended, only fewer.
func (c *snapshotCheck) checkPolicy(p snapshot.Policy) {
	c.checkPolicyAction(p)
	for i, rule := range p.Spec.GetRules() {
		for j, when := range rule.GetWhen() {
			if !snapshot.IsKnownCondition(when.GetKey()) {
				c.reportNoEffect(p.Resource, fmt.Sprintf("spec.rules[%d].when[%d].key", i, j), when.GetKey(),
					"the condition is not supported: an ALLOW rule with this condition never matches, and a DENY rule ignores the condition",
					"use an attribute of Istio's AuthorizationPolicy conditions")
			}
		}
	}
}

// targetedKinds are the kinds with target references.
var targetedKinds = []config.Kind{config.AuthorizationPolicy, config.RequestAuthentication, config.Telemetry, config.WasmPlugin, config.EnvoyFilter}

// checkPolicyTargets reports target references whose kind does not exist in this mesh.
func (c *snapshotCheck) checkPolicyTargets() {
	for _, kind := range targetedKinds {
		for _, r := range c.s.Resources(kind) {
			field, remedy := "spec.targetRefs", "select the workloads by label with spec.selector"
			if kind == config.EnvoyFilter {
				remedy = "select the workloads by label with spec.workloadSelector"
			}
			for i, ref := range targetsOf(r) {
				if !config.TargetsGateway(ref) {
					c.reportNoEffect(r, fmt.Sprintf("%s[%d]", field, i), ref.GetKind(), "this mesh has no waypoints, so the document has no effect on a target of this kind", remedy)
				}
			}
		}
	}
}

// targetsOf returns the target references of a document.
func targetsOf(r *config.Resource) []*typev1beta1.PolicyTargetReference {
	switch spec := r.Spec.(type) {
	case *networking.EnvoyFilter:
		return spec.GetTargetRefs()
	case config.TargetingSpec:
		return config.PolicyTargets(spec)
	}
	return nil
}
