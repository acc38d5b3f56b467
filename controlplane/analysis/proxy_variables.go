package analysis

import (
	"fmt"
	"maps"
	"slices"

	networkingbeta "istio.io/api/networking/v1beta1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkProxyVariables reports environment variables of ProxyConfigs that have no effect, because only ProxyConfigs in
// the root namespace may set them.
func (c *snapshotCheck) checkProxyVariables() {
	if !c.s.Inputs().StartsProxies {
		return
	}
	root := c.s.Mesh.GetRootNamespace()
	for _, r := range c.s.Resources(config.ProxyConfig) {
		spec := r.Spec.(*networkingbeta.ProxyConfig)
		if r.Namespace == root {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(spec.GetEnvironmentVariables())) {
			if !snapshot.IsTenantVariable(name) {
				c.reportNoEffect(r, "spec.environmentVariables["+name+"]", name,
					"the control plane ignores the variable: only ProxyConfigs in the root namespace may set it",
					fmt.Sprintf("remove it, or set it in a ProxyConfig in namespace %s; ProxyConfigs in other namespaces may set ISTIO_META_… and the documented settings for tuning", root))
			}
		}
	}
}
