package registry

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// workload is one WorkloadEntry, ready to be selected.
type workload struct {
	resource *config.Resource
	entry    *networking.WorkloadEntry
	labels   map[string]string
}

func newWorkload(r *config.Resource) *workload {
	entry, ok := r.Spec.(*networking.WorkloadEntry)
	if !ok {
		return nil
	}
	return &workload{resource: r, entry: entry, labels: WorkloadLabels(r)}
}

// WorkloadLabels are the labels of a WorkloadEntry, and above them those of its metadata, as Istio merges them.
func WorkloadLabels(r *config.Resource) map[string]string {
	labels := r.Spec.(*networking.WorkloadEntry).GetLabels()
	if len(r.Labels) > 0 {
		labels = maps.Clone(labels)
		if labels == nil {
			labels = make(map[string]string, len(r.Labels))
		}
		maps.Copy(labels, r.Labels)
	}
	return labels
}

// label is one label of a workload.
type label struct{ key, value string }

// crowd is the workloads of one namespace, indexed by label. Immutable.
type crowd struct {
	all     []*workload           // ordered by name
	byLabel map[label][]*workload // those that have it, ordered by name
}

// newCrowd indexes the WorkloadEntries of one namespace, which come ordered by name. Workloads that did not change since
// prev (which may be nil) are used again; those that did, old and new, are given back as well.
func newCrowd(resources []*config.Resource, prev *crowd) (c *crowd, moved []*workload) {
	c = &crowd{}
	if len(resources) > 0 {
		c.all = make([]*workload, 0, len(resources))
	}
	var gone, come []*workload
	old := prev.members()
	for _, r := range resources {
		for len(old) > 0 && old[0].resource.Name < r.Name {
			gone, old = append(gone, old[0]), old[1:]
		}
		var w *workload
		if len(old) > 0 && old[0].resource.Name == r.Name {
			if old[0].resource == r {
				w = old[0]
			} else {
				gone = append(gone, old[0])
			}
			old = old[1:]
		}
		if w == nil {
			if w = newWorkload(r); w == nil {
				continue
			}
			come = append(come, w)
		}
		c.all = append(c.all, w)
	}
	gone = append(gone, old...)
	c.index(prev, gone, come)
	return c, append(gone, come...)
}

// index makes the index by label: of the one before where little has changed.
func (c *crowd) index(prev *crowd, gone, come []*workload) {
	if prev == nil || len(gone)+len(come) > len(c.all)/8 {
		c.byLabel = map[label][]*workload{}
		for _, w := range c.all {
			for k, v := range w.labels {
				c.byLabel[label{k, v}] = append(c.byLabel[label{k, v}], w)
			}
		}
		return
	}
	c.byLabel = maps.Clone(prev.byLabel)
	touched := map[label]bool{}
	for _, w := range append(slices.Clip(gone), come...) {
		for k, v := range w.labels {
			touched[label{k, v}] = true
		}
	}
	for l := range touched {
		c.byLabel[l] = patched(prev.byLabel[l], l, gone, come)
		if len(c.byLabel[l]) == 0 {
			delete(c.byLabel, l)
		}
	}
}

// patched is the list of those with a label, without those that are gone and with those that have come.
func patched(list []*workload, l label, gone, come []*workload) []*workload {
	out := make([]*workload, 0, len(list)+1)
	for _, w := range list {
		if !slices.Contains(gone, w) {
			out = append(out, w)
		}
	}
	for _, w := range come {
		if v, ok := w.labels[l.key]; !ok || v != l.value {
			continue
		}
		i, _ := slices.BinarySearchFunc(out, w, func(a, b *workload) int { return strings.Compare(a.resource.Name, b.resource.Name) })
		out = slices.Insert(out, i, w)
	}
	return out
}

// selected gives the workloads that have all labels of the selector, ordered by name. An empty selector selects none.
func (c *crowd) selected(selector map[string]string) []*workload {
	if c == nil || len(selector) == 0 {
		return nil
	}
	shortest, first := []*workload(nil), true
	for k, v := range selector {
		if list := c.byLabel[label{k, v}]; first || len(list) < len(shortest) {
			shortest, first = list, false
		}
	}
	if len(selector) == 1 {
		return shortest
	}
	var found []*workload
	for _, w := range shortest {
		if matches(selector, w.labels) {
			found = append(found, w)
		}
	}
	return found
}

func (c *crowd) members() []*workload {
	if c == nil {
		return nil
	}
	return c.all
}

// matches says whether the labels have all of the selector's. An empty selector matches nothing.
func matches(selector, labels map[string]string) bool {
	if len(selector) == 0 {
		return false
	}
	for k, v := range selector {
		if w, ok := labels[k]; !ok || v != w {
			return false
		}
	}
	return true
}

// byNamespace cuts a list that is ordered by namespace into one list a namespace.
func byNamespace(resources []*config.Resource) map[string][]*config.Resource {
	cut := map[string][]*config.Resource{}
	for len(resources) > 0 {
		namespace := resources[0].Namespace
		end, _ := slices.BinarySearchFunc(resources, namespace, func(r *config.Resource, namespace string) int {
			if r.Namespace == namespace {
				return -1
			}
			return strings.Compare(r.Namespace, namespace)
		})
		cut[namespace] = resources[:end]
		resources = resources[end:]
	}
	return cut
}
