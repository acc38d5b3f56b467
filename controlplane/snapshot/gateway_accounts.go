package snapshot

import (
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// GatewayAccounts limits which service accounts receive the Secrets of Gateways: only accounts of known workloads that
// the Gateway selects. Known workloads are in the registry or in the field Workloads. The labels that a proxy reports
// are not sufficient, because a proxy can report any labels.
type GatewayAccounts struct {
	// Workloads are the workloads of the platform, including those that are not ready.
	Workloads []Workload
}

// Workload is a workload that the platform reports, for example a pod.
type Workload struct {
	Namespace, ServiceAccount string
	Labels                    map[string]string
}

// PlatformWorkloads returns the workloads that the platform reports. The registry does not contain them. It returns nil
// if the accounts of gateways are not limited.
func (s *Snapshot) PlatformWorkloads() []Workload {
	if s.gatewayAccounts == nil {
		return nil
	}
	return s.gatewayAccounts.Workloads
}

// IsGatewayAccount reports whether account may receive the Secrets to which the Gateway g refers. namespace is the
// namespace of the account and of the Secrets.
func (s *Snapshot) IsGatewayAccount(g Gateway, namespace, account string) bool {
	return s.anyGatewayAccount(g, namespace, func(known string) bool { return known == account })
}

// HasGatewayAccount reports whether at least one service account of namespace may receive the Secrets to which the
// Gateway g refers.
func (s *Snapshot) HasGatewayAccount(g Gateway, namespace string) bool {
	return s.anyGatewayAccount(g, namespace, func(known string) bool { return known != "" })
}

// IsAnyGatewayAccount reports whether any Gateway selects a known workload with the account. Only such an account may
// receive the Secrets to which DestinationRules refer for gateways. If the accounts of gateways are not limited, it
// always returns true.
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
	matchesWorkload := func(r *config.Resource) bool { return matches(registry.WorkloadAccount(r)) }
	return slices.ContainsFunc(s.Registry.SelectedWorkloads(namespace, selector), matchesWorkload) ||
		slices.ContainsFunc(s.gatewayAccounts.Workloads, func(w Workload) bool {
			return w.Namespace == namespace && Selects(selector, w.Labels) && matches(w.ServiceAccount)
		})
}

// LimitsGatewayAccounts reports whether only the accounts of known workloads receive the Secrets of Gateways.
func (s *Snapshot) LimitsGatewayAccounts() bool { return s.gatewayAccounts != nil }
