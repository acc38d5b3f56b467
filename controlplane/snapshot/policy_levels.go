package snapshot

import (
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// isWorkloadSpecific reports whether a document applies only to some workloads of its namespace.
func isWorkloadSpecific(spec policySpec) bool {
	return len(spec.GetSelector().GetMatchLabels()) > 0 || spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
}

// levels contains the documents whose settings workloads inherit: documents for the mesh, for a namespace, and for
// single workloads.
type levels[T policySpec] struct {
	root        string
	byNamespace map[string][]leveledResource[T] // oldest document first
}

type leveledResource[T policySpec] struct {
	*config.Resource
	spec T
}

func newLevels[T policySpec](resources []*config.Resource, root string) *levels[T] {
	l := &levels[T]{root: root, byNamespace: map[string][]leveledResource[T]{}}
	for _, r := range config.SortByAge(resources) {
		l.byNamespace[r.Namespace] = append(l.byNamespace[r.Namespace], leveledResource[T]{r, r.Spec.(T)})
	}
	return l
}

// forWorkload returns the documents of a workload, in the order mesh, namespace, workload. Each level has at most one
// document: the oldest.
func (l *levels[T]) forWorkload(namespace string, labels map[string]string) []leveledResource[T] {
	var out []leveledResource[T]
	take := func(namespace string, wanted func(T) bool) {
		for _, d := range l.byNamespace[namespace] {
			if wanted(d.spec) {
				out = append(out, d)
				return
			}
		}
	}
	wide := func(spec T) bool { return !isWorkloadSpecific(spec) }
	take(l.root, wide)
	if namespace != l.root {
		take(namespace, wide)
	}
	take(namespace, func(spec T) bool { return isWorkloadSpecific(spec) && PolicyApplies(spec, true, labels) })
	return out
}
