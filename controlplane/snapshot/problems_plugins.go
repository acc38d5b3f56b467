package snapshot

import (
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// checkPullSecrets reports missing Secrets of plugins.
func (c *checker) checkPullSecrets() {
	for _, namespace := range slices.Sorted(maps.Keys(c.s.plugins)) {
		for _, p := range c.s.plugins[namespace] {
			if name := p.Spec.GetImagePullSecret(); name != "" && c.s.PullSecret(p) == nil {
				c.reportWarning(config.UnknownCredential, p.Resource, "spec.imagePullSecret", name,
					"the plugin's namespace has no Secret with this name and .dockerconfigjson, so agents request the module without credentials",
					"add a Secret of type kubernetes.io/dockerconfigjson to the namespace "+p.Namespace)
			}
		}
	}
}
