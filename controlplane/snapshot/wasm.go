package snapshot

import (
	"cmp"
	"slices"

	extensions "istio.io/api/extensions/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Plugin is one WasmPlugin.
type Plugin struct {
	*config.Resource
	Spec *extensions.WasmPlugin
}

// newPlugins are all WasmPlugins by namespace, in the order in which requests pass them: those of higher priority first,
// and of one priority the older ones.
func newPlugins(resources []*config.Resource) map[string][]Plugin {
	out := map[string][]Plugin{}
	for _, r := range oldestFirst(resources) {
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

// Plugins are the WasmPlugins for a workload with these labels: those of the root namespace and of its own, in the order in
// which requests pass them.
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
