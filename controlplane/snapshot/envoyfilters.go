package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// EnvoyFilter is one EnvoyFilter. It stays the same from snapshot to snapshot as long as its document does.
type EnvoyFilter struct {
	*config.Resource
	Spec *networking.EnvoyFilter

	once sync.Once
	read any

	mu    sync.Mutex
	notes map[config.Problem]bool
}

// NewEnvoyFilter makes one of a document that is not in force itself.
func NewEnvoyFilter(r *config.Resource) *EnvoyFilter {
	return &EnvoyFilter{Resource: r, Spec: r.Spec.(*networking.EnvoyFilter)}
}

// Read gives what make makes of the filter, which it is asked for once.
func (f *EnvoyFilter) Read(make func(*config.Resource) any) any {
	f.once.Do(func() { f.read = make(f.Resource) })
	return f.read
}

// Guards says whether the filter may be what keeps callers out, or what secures calls: it has a part in what comes in at
// sidecars or gateways, or in how clusters are connected to. To do without it may open what nobody wants open.
func (f *EnvoyFilter) Guards() bool {
	return slices.ContainsFunc(f.Spec.GetConfigPatches(), func(p *networking.EnvoyFilter_EnvoyConfigObjectPatch) bool {
		if p.GetApplyTo() == networking.EnvoyFilter_CLUSTER {
			value := p.GetPatch().GetValue().GetFields()
			for _, name := range []string{"transport_socket", "transportSocket", "transport_socket_matches", "transportSocketMatches"} {
				if value[name] != nil {
					return true
				}
			}
			return false
		}
		return p.GetMatch().GetContext() != networking.EnvoyFilter_SIDECAR_OUTBOUND
	})
}

// Note records a problem that shows only when the filter is used, and is there as long as its document is the same. What depends
// on more than that is for Snapshot.Noted.
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

// noted is a copy of what was.
func (f *EnvoyFilter) noted() map[config.Problem]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[config.Problem]bool, len(f.notes))
	maps.Copy(out, f.notes)
	return out
}

// envoyFilters is all EnvoyFilters, in the order in which they are applied within their namespace.
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
	for _, r := range oldestFirst(resources) {
		f := known[r]
		if f == nil {
			f = NewEnvoyFilter(r)
		}
		index.all = append(index.all, f)
	}
	slices.SortStableFunc(index.all, func(a, b *EnvoyFilter) int { return cmp.Compare(a.Spec.GetPriority(), b.Spec.GetPriority()) })
	for _, f := range index.all {
		index.byNamespace[f.Namespace] = append(index.byNamespace[f.Namespace], f)
	}
	return index
}

// AllEnvoyFilters gives those of all proxies, by their keys.
func (s *Snapshot) AllEnvoyFilters() map[config.Key]*EnvoyFilter {
	if s == nil || s.envoyFilters == nil {
		return nil
	}
	all := make(map[config.Key]*EnvoyFilter, len(s.envoyFilters.all))
	for _, f := range s.envoyFilters.all {
		all[f.Key] = f
	}
	return all
}

// SameEnvoyFilters says whether two snapshots have the same ones, at no cost.
func SameEnvoyFilters(a, b *Snapshot) bool {
	return a != nil && b != nil && a.envoyFilters == b.envoyFilters
}

// EnvoyFilters are those for a proxy with these labels, in the order in which they are applied: by priority; those of the
// root namespace before those of its own; then the oldest first.
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

// FilterApplies says whether an EnvoyFilter of the root namespace, or (near) of the workload's own, is for a workload with
// these labels.
func FilterApplies(spec *networking.EnvoyFilter, near bool, labels map[string]string) bool {
	if len(spec.GetTargetRefs()) == 0 {
		return Selects(spec.GetWorkloadSelector().GetLabels(), labels)
	}
	return slices.ContainsFunc(spec.GetTargetRefs(), func(ref *targetRef) bool { return near && refersTo(ref, labels) })
}
