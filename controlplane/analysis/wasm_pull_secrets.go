package analysis

import (
	extensions "istio.io/api/extensions/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// checkPullSecrets reports pull Secrets of WasmPlugins that do not exist or contain no registry credentials.
func (c *snapshotCheck) checkPullSecrets() {
	for _, r := range c.s.Resources(config.WasmPlugin) {
		p := snapshot.Plugin{Resource: r, Spec: r.Spec.(*extensions.WasmPlugin)}
		if name := p.Spec.GetImagePullSecret(); name != "" && c.s.PullSecret(p) == nil {
			c.reportWarning(config.UnknownCredential, p.Resource, "spec.imagePullSecret", name,
				"the plugin's namespace has no Secret with this name that contains .dockerconfigjson, so agents request the module without credentials",
				"add a Secret of type kubernetes.io/dockerconfigjson to the namespace "+p.Namespace)
		}
	}
}
