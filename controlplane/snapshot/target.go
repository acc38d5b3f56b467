package snapshot

import (
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// narrow says whether a document is for some workloads of its namespace only.
func narrow(spec targeted) bool {
	return len(spec.GetSelector().GetMatchLabels()) > 0 || spec.GetTargetRef() != nil || len(spec.GetTargetRefs()) > 0
}

// levels are documents that a workload inherits from one another: of the mesh, of its namespace, and its own.
type levels[T targeted] struct {
	root        string
	byNamespace map[string][]levelled[T] // the oldest first
}

type levelled[T targeted] struct {
	*config.Resource
	spec T
}

func newLevels[T targeted](resources []*config.Resource, root string) *levels[T] {
	l := &levels[T]{root: root, byNamespace: map[string][]levelled[T]{}}
	for _, r := range oldestFirst(resources) {
		l.byNamespace[r.Namespace] = append(l.byNamespace[r.Namespace], levelled[T]{r, r.Spec.(T)})
	}
	return l
}

// of are the documents in force for a workload: one of each level at most, the oldest, the widest level first.
func (l *levels[T]) of(namespace string, labels map[string]string) []levelled[T] {
	var out []levelled[T]
	take := func(namespace string, wanted func(T) bool) {
		for _, d := range l.byNamespace[namespace] {
			if wanted(d.spec) {
				out = append(out, d)
				return
			}
		}
	}
	wide := func(spec T) bool { return !narrow(spec) }
	take(l.root, wide)
	if namespace != l.root {
		take(namespace, wide)
	}
	take(namespace, func(spec T) bool { return narrow(spec) && PolicyApplies(spec, true, labels) })
	return out
}
