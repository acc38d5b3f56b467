package snapshot

import (
	"cmp"
	"slices"

	extensions "istio.io/api/extensions/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Plugin is a WasmPlugin document.
type Plugin struct {
	*config.Resource
	Spec *extensions.WasmPlugin
}

// PullSecret returns the Secret with which an agent pulls the plugin's module. It returns nil if the plugin specifies
// none, or if the Secret does not exist or contains no registry credentials.
func (s *Snapshot) PullSecret(p Plugin) *config.SecretSpec {
	name := p.Spec.GetImagePullSecret()
	if name == "" {
		return nil
	}
	secret := s.secrets.byKey[config.Key{Kind: config.Secret, Namespace: p.Namespace, Name: name}]
	if secret == nil || len(secret.Registries) == 0 {
		return nil
	}
	return secret
}

// newPlugins returns all WasmPlugins by namespace in the order of request processing: higher priority first, then older
// first.
func newPlugins(resources []*config.Resource) map[string][]Plugin {
	out := map[string][]Plugin{}
	for _, r := range config.SortByAge(resources) {
		out[r.Namespace] = append(out[r.Namespace], Plugin{Resource: r, Spec: r.Spec.(*extensions.WasmPlugin)})
	}
	for _, list := range out {
		slices.SortStableFunc(list, byPriority)
	}
	return out
}

func byPriority(a, b Plugin) int {
	return cmp.Compare(b.Spec.GetPriority().GetValue(), a.Spec.GetPriority().GetValue())
}

// Plugins returns the WasmPlugins of a workload, from the root namespace and its own, in the order of request
// processing.
func (s *Snapshot) Plugins(namespace string, labels map[string]string) []Plugin {
	if len(s.plugins) == 0 {
		return nil
	}
	root := s.Mesh.GetRootNamespace()
	var out []Plugin
	for _, p := range s.plugins[root] {
		if PolicyApplies(p.Spec, namespace == root, labels) {
			out = append(out, p)
		}
	}
	if namespace == root {
		return out
	}
	for _, p := range s.plugins[namespace] {
		if PolicyApplies(p.Spec, true, labels) {
			out = append(out, p)
		}
	}
	slices.SortStableFunc(out, byPriority)
	return out
}
