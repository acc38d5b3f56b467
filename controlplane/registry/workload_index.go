package registry

import (
	"maps"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// workload is a WorkloadEntry with its merged labels, or a pod that a ServiceEntry selects.
type workload struct {
	resource *config.Resource
	entry    *networking.WorkloadEntry // of a pod: its address
	pod      *config.PodSpec           // nil for a WorkloadEntry
	labels   map[string]string
	problems []config.Problem
}

func newWorkload(r *config.Resource, opts Options) *workload {
	entry, ok := r.Spec.(*networking.WorkloadEntry)
	if !ok {
		return nil
	}
	return &workload{resource: r, entry: entry, labels: WorkloadLabels(r), problems: opts.checkWorkloadEntry(r, entry)}
}

// newPodWorkload returns a pod as a workload.
func newPodWorkload(r *config.Resource) *workload {
	pod := r.Spec.(*config.PodSpec)
	return &workload{resource: r, pod: pod, entry: &networking.WorkloadEntry{Address: pod.Addresses[0].String()}, labels: r.Labels}
}

// WorkloadLabels returns the labels of a pod or of a WorkloadEntry. As in Istio, the labels in the metadata and in the
// spec of a WorkloadEntry are merged. Labels in the metadata take precedence.
func WorkloadLabels(r *config.Resource) map[string]string {
	entry, ok := r.Spec.(*networking.WorkloadEntry)
	if !ok {
		return r.Labels
	}
	labels := entry.GetLabels()
	if len(r.Labels) > 0 {
		labels = maps.Clone(labels)
		if labels == nil {
			labels = make(map[string]string, len(r.Labels))
		}
		maps.Copy(labels, r.Labels)
	}
	return labels
}

// WorkloadAccount returns the service account of a pod or of a WorkloadEntry.
func WorkloadAccount(r *config.Resource) string {
	if pod, ok := r.Spec.(*config.PodSpec); ok {
		return pod.ServiceAccount
	}
	return r.Spec.(*networking.WorkloadEntry).GetServiceAccount()
}

// label is one label of a workload.
type label struct{ key, value string }

// workloadIndex contains the workloads of one namespace, indexed by label. It is immutable.
type workloadIndex struct {
	all     []*workload           // ordered by name
	byLabel map[label][]*workload // workloads with the label, ordered by name
}

// newWorkloadIndex indexes the WorkloadEntries of one namespace, which must be ordered by name. It shares unchanged
// workloads with prev, which may be nil. moved contains the old and new versions of changed workloads.
func newWorkloadIndex(resources []*config.Resource, opts Options, prev *workloadIndex) (c *workloadIndex, moved []*workload) {
	c = &workloadIndex{}
	if len(resources) > 0 {
		c.all = make([]*workload, 0, len(resources))
	}
	var removed, added []*workload
	old := prev.members()
	for _, r := range resources {
		for len(old) > 0 && old[0].resource.Name < r.Name {
			removed, old = append(removed, old[0]), old[1:]
		}
		var w *workload
		if len(old) > 0 && old[0].resource.Name == r.Name {
			if old[0].resource == r {
				w = old[0]
			} else {
				removed = append(removed, old[0])
			}
			old = old[1:]
		}
		if w == nil {
			if w = newWorkload(r, opts); w == nil {
				continue
			}
			added = append(added, w)
		}
		c.all = append(c.all, w)
	}
	removed = append(removed, old...)
	c.buildLabelIndex(prev, removed, added)
	return c, append(removed, added...)
}

// buildLabelIndex creates the index by label. After few changes it modifies a copy of the previous index instead of
// building a new one.
func (c *workloadIndex) buildLabelIndex(prev *workloadIndex, removed, added []*workload) {
	if prev == nil || len(removed)+len(added) > len(c.all)/8 {
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
	for _, w := range append(slices.Clip(removed), added...) {
		for k, v := range w.labels {
			touched[label{k, v}] = true
		}
	}
	for l := range touched {
		c.byLabel[l] = patchList(prev.byLabel[l], l, removed, added)
		if len(c.byLabel[l]) == 0 {
			delete(c.byLabel, l)
		}
	}
}

// patchList updates a list of workloads that have the label l. It returns a copy without the removed workloads and with
// those added workloads that have the label.
func patchList(list []*workload, l label, removed, added []*workload) []*workload {
	out := make([]*workload, 0, len(list)+1)
	for _, w := range list {
		if !slices.Contains(removed, w) {
			out = append(out, w)
		}
	}
	for _, w := range added {
		if v, ok := w.labels[l.key]; !ok || v != l.value {
			continue
		}
		i, _ := slices.BinarySearchFunc(out, w, func(a, b *workload) int { return strings.Compare(a.resource.Name, b.resource.Name) })
		out = slices.Insert(out, i, w)
	}
	return out
}

// selectWorkloads returns the workloads that have all labels of the selector, sorted by name. An empty selector selects
// none.
func (c *workloadIndex) selectWorkloads(selector map[string]string) []*workload {
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
		if matchesSelector(selector, w.labels) {
			found = append(found, w)
		}
	}
	return found
}

func (c *workloadIndex) members() []*workload {
	if c == nil {
		return nil
	}
	return c.all
}

// matchesSelector reports whether the labels include all labels of the selector. An empty selector matches nothing.
func matchesSelector(selector, labels map[string]string) bool {
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

// groupByNamespace splits a list that is ordered by namespace into one list per namespace.
func groupByNamespace(resources []*config.Resource) map[string][]*config.Resource {
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
