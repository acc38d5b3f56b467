package snapshot

import (
	"maps"

	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ProxyConfig merges the ProxyConfigs that apply to a workload, in three levels: the root namespace, the workload's
// namespace, and a selector for the workload. Later levels override earlier ones. Each level uses only its oldest
// document. Environment variables that a document may not set are omitted (see IsTenantVariable).
func (s *Snapshot) ProxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	const levels = 3
	var of [levels]*config.Resource
	for _, r := range config.SortByAge(s.resources[config.ProxyConfig]) {
		selector := r.Spec.(*networkingbeta.ProxyConfig).GetSelector().GetMatchLabels()
		level := -1
		switch {
		case r.Namespace == namespace && len(selector) > 0 && Selects(selector, labels):
			level = 2
		case r.Namespace == namespace && len(selector) == 0 && namespace != s.Mesh.GetRootNamespace():
			level = 1
		case r.Namespace == s.Mesh.GetRootNamespace() && len(selector) == 0:
			level = 0
		}
		if level >= 0 && of[level] == nil {
			of[level] = r
		}
	}
	out := &networkingbeta.ProxyConfig{EnvironmentVariables: map[string]string{}}
	for _, r := range of {
		if r == nil {
			continue
		}
		spec := r.Spec.(*networkingbeta.ProxyConfig)
		if spec.GetConcurrency() != nil {
			out.Concurrency = spec.GetConcurrency()
		}
		maps.Copy(out.EnvironmentVariables, s.listVariables(r.Namespace, spec))
	}
	return out
}
