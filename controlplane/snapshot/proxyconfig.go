package snapshot

import (
	"maps"

	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// ProxyConfig returns the merged ProxyConfigs of a workload: root namespace, own namespace, selector, where later
// levels override earlier ones. Each level has at most one document: the oldest.
func (s *Snapshot) ProxyConfig(namespace string, labels map[string]string) *networkingbeta.ProxyConfig {
	const levels = 3
	var of [levels]*networkingbeta.ProxyConfig
	for _, r := range sortByAge(s.resources[config.ProxyConfig]) {
		spec := r.Spec.(*networkingbeta.ProxyConfig)
		selector := spec.GetSelector().GetMatchLabels()
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
			of[level] = spec
		}
	}
	out := &networkingbeta.ProxyConfig{EnvironmentVariables: map[string]string{}}
	for _, spec := range of {
		if spec.GetConcurrency() != nil {
			out.Concurrency = spec.GetConcurrency()
		}
		maps.Copy(out.EnvironmentVariables, spec.GetEnvironmentVariables())
	}
	return out
}
