package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"
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
	notes map[config.Problem]causes
}

// causes are, for each time that a problem showed, the filters that had a part in it beside the one that it is told of. It is
// there as long as all of one time are.
type causes [][]*EnvoyFilter

func (c causes) hold(there map[*EnvoyFilter]bool) bool {
	return slices.ContainsFunc(c, func(all []*EnvoyFilter) bool {
		return !slices.ContainsFunc(all, func(f *EnvoyFilter) bool { return !there[f] })
	})
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

// maxNotes bounds what is remembered of one filter: with the same patch left out at a thousand clusters, some say it all.
const maxNotes = 20

// Note records a problem that shows only where the filter is applied. It is there as long as the document, and the filters that it
// was applied with, are the same.
func (f *EnvoyFilter) Note(p config.Problem, with ...*EnvoyFilter) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.notes == nil {
		f.notes = map[config.Problem]causes{}
	}
	known, there := f.notes[p]
	if !there && len(f.notes) >= maxNotes || slices.ContainsFunc(known, func(all []*EnvoyFilter) bool { return equalPointers(all, with) }) {
		return
	}
	f.notes[p] = append(known, with)
}

// forget drops the notes that hold no more.
func (f *EnvoyFilter) forget(there map[*EnvoyFilter]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.notes, func(_ config.Problem, c causes) bool { return !c.hold(there) })
}

func (f *EnvoyFilter) noted(there map[*EnvoyFilter]bool) []config.Problem {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []config.Problem
	for p, c := range f.notes {
		if c.hold(there) { // else it was noted for a snapshot of before, when that had ended
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b config.Problem) int {
		return cmp.Or(strings.Compare(a.Field, b.Field), strings.Compare(a.Value, b.Value), strings.Compare(a.Message, b.Message))
	})
	return out
}

// envoyFilters is all EnvoyFilters, in the order in which they are applied within their namespace.
type envoyFilters struct {
	root        string
	all         []*EnvoyFilter
	there       map[*EnvoyFilter]bool
	byNamespace map[string][]*EnvoyFilter
}

func newEnvoyFilters(prev *envoyFilters, resources []*config.Resource, root string) *envoyFilters {
	known := map[*config.Resource]*EnvoyFilter{}
	if prev != nil {
		for _, f := range prev.all {
			known[f.Resource] = f
		}
	}
	index := &envoyFilters{root: root, there: map[*EnvoyFilter]bool{}, byNamespace: map[string][]*EnvoyFilter{}}
	for _, r := range oldestFirst(resources) {
		f := known[r]
		if f == nil {
			f = NewEnvoyFilter(r)
		}
		index.all = append(index.all, f)
		index.there[f] = true
	}
	for _, f := range index.all {
		f.forget(index.there)
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

// notedProblems are what showed where EnvoyFilters were applied so far.
func (s *Snapshot) notedProblems() []config.Problem {
	var out []config.Problem
	if s.envoyFilters != nil {
		for _, f := range s.envoyFilters.all {
			out = append(out, f.noted(s.envoyFilters.there)...)
		}
	}
	return out
}
