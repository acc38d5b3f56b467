package registry

import (
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Workloads returns the WorkloadEntries of a namespace that have all labels, sorted by name. known reports whether the
// namespace contains any workload.
func (r *Registry) Workloads(namespace string, labels map[string]string) (found []*config.Resource, known bool) {
	index := r.workloads[namespace]
	for _, w := range index.selectWorkloads(labels) {
		found = append(found, w.resource)
	}
	return found, len(index.members()) > 0
}

// SelectedWorkloads returns the WorkloadEntries of a namespace that have all labels of selector, sorted by name. An
// empty selector selects all.
func (r *Registry) SelectedWorkloads(namespace string, selector map[string]string) []*config.Resource {
	index := r.workloads[namespace]
	workloads := index.members()
	if len(selector) > 0 {
		workloads = index.selectWorkloads(selector)
	}
	found := make([]*config.Resource, 0, len(workloads))
	for _, w := range workloads {
		found = append(found, w.resource)
	}
	return found
}

// ChangedWorkloads returns the namespaces whose workloads differ between r and prev, sorted.
func (r *Registry) ChangedWorkloads(prev *Registry) []string {
	var changed []string
	for namespace, workloads := range r.workloads {
		if prev.workloads[namespace] != workloads {
			changed = append(changed, namespace)
		}
	}
	for namespace := range prev.workloads {
		if r.workloads[namespace] == nil {
			changed = append(changed, namespace)
		}
	}
	slices.Sort(changed)
	return changed
}

// Namespaces returns the namespaces with workloads or services, sorted.
func (r *Registry) Namespaces() []string {
	names := map[string]bool{}
	for namespace, workloads := range r.workloads {
		if len(workloads.members()) > 0 {
			names[namespace] = true
		}
	}
	for _, svc := range r.Services {
		names[svc.Namespace] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Document returns the document that defines a service, or nil if the service is not in this registry.
func (r *Registry) Document(svc *Service) *config.Resource {
	if s := r.bySource[svc.Source]; s != nil {
		return s.resource
	}
	return nil
}
