package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// EnvoyFilter is a document of kind EnvoyFilter. Consecutive snapshots share the value until the document changes.
type EnvoyFilter struct {
	*config.Resource
	Spec *networking.EnvoyFilter

	once sync.Once
	read any

	mu    sync.Mutex
	notes map[config.Problem]bool
}

// Parse calls make at the first call for this filter, and returns the same result at later calls.
func (f *EnvoyFilter) Parse(make func(*config.Resource) any) any {
	f.once.Do(func() { f.read = make(f.Resource) })
	return f.read
}

// Note records a problem that was found when the filter was applied and that depends only on this document. Record
// other problems with Snapshot.RecordNotes.
func (f *EnvoyFilter) Note(p config.Problem) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.notes == nil {
		f.notes = map[config.Problem]bool{}
	}
	if len(f.notes) < maxNotes {
		f.notes[p] = true
	}
}

// copyNotes returns a copy of the notes.
func (f *EnvoyFilter) copyNotes() map[config.Problem]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[config.Problem]bool, len(f.notes))
	maps.Copy(out, f.notes)
	return out
}

// envoyFilters contains all EnvoyFilters by namespace, in the order of their application.
type envoyFilters struct {
	root        string
	all         []*EnvoyFilter
	byNamespace map[string][]*EnvoyFilter
}

func newEnvoyFilters(prev *envoyFilters, resources []*config.Resource, root string) *envoyFilters {
	known := map[*config.Resource]*EnvoyFilter{}
	if prev != nil {
		for _, f := range prev.all {
			known[f.Resource] = f
		}
	}
	index := &envoyFilters{root: root, byNamespace: map[string][]*EnvoyFilter{}}
	for _, r := range config.SortByAge(resources) {
		f := known[r]
		if f == nil {
			f = &EnvoyFilter{Resource: r, Spec: r.Spec.(*networking.EnvoyFilter)}
		}
		index.all = append(index.all, f)
	}
	slices.SortStableFunc(index.all, func(a, b *EnvoyFilter) int { return cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()) })
	for _, f := range index.all {
		index.byNamespace[f.Namespace] = append(index.byNamespace[f.Namespace], f)
	}
	return index
}

// EnvoyFilters returns the filters of a proxy in the order of their application. The order is by priority. Filters with
// the same priority in the root namespace precede those in the proxy's own namespace. Within a namespace, older filters
// are first.
func (s *Snapshot) EnvoyFilters(namespace string, labels map[string]string) []*EnvoyFilter {
	if s.envoyFilters == nil || len(s.envoyFilters.all) == 0 {
		return nil
	}
	var out []*EnvoyFilter
	add := func(from string) {
		for _, f := range s.envoyFilters.byNamespace[from] {
			if FilterApplies(f.Spec, from == namespace, labels) {
				out = append(out, f)
			}
		}
	}
	add(s.envoyFilters.root)
	if namespace != s.envoyFilters.root {
		add(namespace)
	}
	slices.SortStableFunc(out, func(a, b *EnvoyFilter) int { return cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()) })
	return out
}

// FilterApplies reports whether an EnvoyFilter applies to a workload. The filter must be in the root namespace or, if
// near is set, in the workload's own namespace.
func FilterApplies(spec *networking.EnvoyFilter, near bool, labels map[string]string) bool {
	if len(spec.GetTargetRefs()) == 0 {
		return Selects(spec.GetWorkloadSelector().GetLabels(), labels)
	}
	return slices.ContainsFunc(spec.GetTargetRefs(), func(ref *targetRef) bool { return near && refersTo(ref, labels) })
}
