package snapshot

import (
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// policySpec is implemented by all policies for workloads.
type policySpec interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// Labels of a gateway's workload with the name of its Gateway in Kubernetes' Gateway API.
const (
	gatewayNameLabel    = "gateway.networking.k8s.io/gateway-name"
	oldGatewayNameLabel = "istio.io/gateway-name"
)

// PolicyApplies reports whether a policy applies to a workload: by its selector, or because it targets the Gateway of
// the workload. The policy must be in the root namespace or, if near is set, in the workload's own namespace. Targets
// have an effect only in the policy's own namespace.
func PolicyApplies(p policySpec, near bool, labels map[string]string) bool {
	refs := config.PolicyTargets(p)
	if len(refs) == 0 {
		return Selects(p.GetSelector().GetMatchLabels(), labels)
	}
	for _, ref := range refs {
		if near && refersTo(ref, labels) {
			return true
		}
	}
	return false
}

type targetRef = typev1beta1.PolicyTargetReference

// refersTo reports whether a target is the Gateway of a workload.
func refersTo(ref *targetRef, labels map[string]string) bool {
	return config.TargetsGateway(ref) && (labels[gatewayNameLabel] == ref.GetName() || labels[oldGatewayNameLabel] == ref.GetName())
}
