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

// Labels of a gateway's workload. Their value is the name of the workload's Gateway in Kubernetes' Gateway API.
const (
	gatewayNameLabel    = "gateway.networking.k8s.io/gateway-name"
	oldGatewayNameLabel = "istio.io/gateway-name"
)

// PolicyApplies reports whether a policy applies to a workload with the labels. The caller passes only policies of the
// root namespace and of the workload's own namespace; near means that the policy is in the latter. Policies with
// targets apply only if near is set and a target is the workload's Gateway. Other policies apply by their selector.
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

// refersTo reports whether ref refers to the Gateway of a workload with the labels.
func refersTo(ref *targetRef, labels map[string]string) bool {
	return config.TargetsGateway(ref) && (labels[gatewayNameLabel] == ref.GetName() || labels[oldGatewayNameLabel] == ref.GetName())
}
