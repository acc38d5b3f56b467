package snapshot

import (
	typev1beta1 "istio.io/api/type/v1beta1"
)

// targeted is what the policies for workloads have in common.
type targeted interface {
	GetSelector() *typev1beta1.WorkloadSelector
	GetTargetRef() *typev1beta1.PolicyTargetReference
	GetTargetRefs() []*typev1beta1.PolicyTargetReference
}

// The labels by which a gateway's workload says which Gateway of Kubernetes' Gateway API it serves.
const (
	gatewayNameLabel    = "gateway.networking.k8s.io/gateway-name"
	oldGatewayNameLabel = "istio.io/gateway-name"
)

// PolicyApplies says whether a policy that is near enough to a workload is for it: by its selector, or by naming the
// Gateway that the workload serves. near says whether the policy is of the workload's own namespace: no policy refers to
// anything of another's.
func PolicyApplies(p targeted, near bool, labels map[string]string) bool {
	refs := p.GetTargetRefs()
	if ref := p.GetTargetRef(); ref != nil {
		refs = append(refs[:len(refs):len(refs)], ref)
	}
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

// refersTo says whether a target is the Gateway that a workload serves.
func refersTo(ref *targetRef, labels map[string]string) bool {
	return TargetsGateway(ref) && (labels[gatewayNameLabel] == ref.GetName() || labels[oldGatewayNameLabel] == ref.GetName())
}

// TargetsGateway says whether a policy's target is a Gateway of the Gateway API. Services, and classes of gateways, are
// targets for waypoints, of which there are none here.
func TargetsGateway(ref *typev1beta1.PolicyTargetReference) bool {
	return ref.GetKind() == "Gateway" && ref.GetGroup() == "gateway.networking.k8s.io" && ref.GetName() != ""
}
