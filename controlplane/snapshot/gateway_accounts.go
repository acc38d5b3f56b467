package snapshot

import (
	"slices"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// GatewayAccounts limits the Secrets of Gateways to the service accounts of known workloads that the Gateway selects. A
// proxy can claim any labels, so these prove nothing. Therefore only workloads of the registry, and those in Workloads,
// are considered.
type GatewayAccounts struct {
	// Workloads are the workloads of the platform, including those that are not ready.
	Workloads []Workload
}

// Workload is a workload that the platform reports, for example a pod.
type Workload struct {
	Namespace, ServiceAccount string
	Labels                    map[string]string
}

// PlatformWorkloads returns the workloads that the platform reports. The registry does not contain them.
func (s *Snapshot) PlatformWorkloads() []Workload {
	if s.gatewayAccounts == nil {
		return nil
	}
	return s.gatewayAccounts.Workloads
}

// IsGatewayAccount reports whether a service account may receive the Secrets in a namespace to which a Gateway refers.
func (s *Snapshot) IsGatewayAccount(g Gateway, namespace, account string) bool {
	return s.anyGatewayAccount(g, namespace, func(known string) bool { return known == account })
}

// HasGatewayAccount reports whether any service account may receive the Secrets in a namespace to which a Gateway refers.
func (s *Snapshot) HasGatewayAccount(g Gateway, namespace string) bool {
	return s.anyGatewayAccount(g, namespace, func(known string) bool { return known != "" })
}

// IsAnyGatewayAccount reports whether a service account may receive the Secrets in a namespace to which DestinationRules
// refer for gateways: it is the account of a known workload that any Gateway selects.
func (s *Snapshot) IsAnyGatewayAccount(namespace, account string) bool {
	return s.gatewayAccounts == nil || s.Memo(gatewayAccountKey{namespace, account}, func() any {
		return slices.ContainsFunc(s.gateways, func(g Gateway) bool { return s.IsGatewayAccount(g, namespace, account) })
	}).(bool)
}

type gatewayAccountKey struct{ namespace, account string }

func (s *Snapshot) anyGatewayAccount(g Gateway, namespace string, matches func(account string) bool) bool {
	if s.gatewayAccounts == nil {
		return true
	}
	selector := g.Spec.GetSelector()
	matchesEntry := func(r *config.Resource) bool { return matches(r.Spec.(*networking.WorkloadEntry).GetServiceAccount()) }
	return slices.ContainsFunc(s.Registry.SelectedWorkloads(namespace, selector), matchesEntry) ||
		slices.ContainsFunc(s.gatewayAccounts.Workloads, func(w Workload) bool {
			return w.Namespace == namespace && Selects(selector, w.Labels) && matches(w.ServiceAccount)
		})
}

// LimitsGatewayAccounts reports whether the known workloads determine which accounts receive the Secrets of Gateways.
func (s *Snapshot) LimitsGatewayAccounts() bool { return s.gatewayAccounts != nil }
