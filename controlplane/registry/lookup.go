package registry

import (
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Workloads returns the WorkloadEntries and running pods of a namespace that have all labels, each sorted by name. known
// reports whether the namespace contains any workload.
func (r *Registry) Workloads(namespace string, labels map[string]string) (found []*config.Resource, known bool) {
	index := r.workloads[namespace]
	for _, w := range index.selectWorkloads(labels) {
		found = append(found, w.resource)
	}
	pods, _ := r.cluster.pods.get(namespace)
	found = append(found, pods.lookupLabels(labels)...)
	return found, len(found) > 0 || len(index.members()) > 0 || !pods.isEmpty()
}

// SelectedWorkloads returns the WorkloadEntries and running pods of a namespace that have all labels of selector, each
// sorted by name. An empty selector selects all.
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
	pods, _ := r.cluster.pods.get(namespace)
	if len(selector) > 0 {
		return append(found, pods.selectPods(selector)...)
	}
	return append(found, pods.list()...)
}

// Pod returns a pod, or nil. The pod need not be running.
func (r *Registry) Pod(namespace, name string) *config.Resource {
	return r.cluster.pod(namespace, name)
}

// PodLocality returns the locality of a pod: that of its label, or else of its node. It returns "" if the locality or
// the pod is unknown.
func (r *Registry) PodLocality(namespace, name string) string {
	pod := r.cluster.pod(namespace, name)
	if pod == nil {
		return ""
	}
	return r.cluster.podLocality(pod)
}

// ChangedWorkloads returns the namespaces whose workloads differ between r and prev, sorted.
func (r *Registry) ChangedWorkloads(prev *Registry) []string {
	changed := map[string]bool{}
	for namespace, workloads := range r.workloads {
		if prev.workloads[namespace] != workloads {
			changed[namespace] = true
		}
	}
	for namespace := range prev.workloads {
		if r.workloads[namespace] == nil {
			changed[namespace] = true
		}
	}
	for namespace, pods := range r.cluster.pods.all() {
		if before, _ := prev.cluster.pods.get(namespace); before != pods {
			changed[namespace] = true
		}
	}
	for namespace := range prev.cluster.pods.all() {
		if _, ok := r.cluster.pods.get(namespace); !ok {
			changed[namespace] = true
		}
	}
	return slices.Sorted(maps.Keys(changed))
}

// Namespaces returns the namespaces with workloads or services, sorted.
func (r *Registry) Namespaces() []string {
	names := map[string]bool{}
	for namespace, workloads := range r.workloads {
		if len(workloads.members()) > 0 {
			names[namespace] = true
		}
	}
	for namespace, pods := range r.cluster.pods.all() {
		if !pods.isEmpty() {
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
