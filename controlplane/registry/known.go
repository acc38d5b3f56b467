package registry

import (
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Workloads are the WorkloadEntries of a namespace that have all of these labels, by name; known says whether any
// workload of the namespace is.
func (r *Registry) Workloads(namespace string, labels map[string]string) (found []*config.Resource, known bool) {
	crowd := r.workloads[namespace]
	for _, w := range crowd.selected(labels) {
		found = append(found, w.resource)
	}
	return found, len(crowd.members()) > 0
}

// Namespaces are those that have workloads or services, sorted.
func (r *Registry) Namespaces() []string {
	names := map[string]bool{}
	for namespace, crowd := range r.workloads {
		if len(crowd.members()) > 0 {
			names[namespace] = true
		}
	}
	for _, svc := range r.Services {
		names[svc.Namespace] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Document is what a service was made of; nil when the service is not of this registry.
func (r *Registry) Document(svc *Service) *config.Resource {
	if s := r.bySource[svc.Source]; s != nil {
		return s.resource
	}
	return nil
}
