package registry

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// objectName identifies an object of a known kind.
type objectName struct{ namespace, name string }

// clusterIndex contains the pods, EndpointSlices, nodes and namespaces of a Kubernetes cluster. It is immutable.
type clusterIndex struct {
	pods   table[string, *podSet] // by namespace
	slices table[objectName, *config.Resource]
	// byService contains the EndpointSlices of each Service, ordered by name.
	byService table[objectName, []*config.Resource]
	// podSlices contains, for each pod, the names of the EndpointSlices in its namespace that refer to it. The pod need
	// not exist.
	podSlices         table[objectName, []string]
	nodes, namespaces map[string]*config.Resource
}

// podSet contains the pods of one namespace. It is immutable.
type podSet struct {
	table[string, *config.Resource]
	index   sync.Once
	byLabel map[label][]*config.Resource
}

// isRunning reports whether the pod of r may receive connections.
func isRunning(r *config.Resource) bool {
	pod := r.Spec.(*config.PodSpec)
	return len(pod.Addresses) > 0 && !pod.IsFinished()
}

// selectPods returns the running pods that have all labels of the selector, sorted by name. An empty selector selects
// none.
func (p *podSet) selectPods(selector map[string]string) []*config.Resource {
	if p == nil {
		return nil
	}
	var found []*config.Resource
	for _, r := range p.all() {
		if matchesSelector(selector, r.Labels) && isRunning(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, compareNames)
	return found
}

// list returns the running pods, sorted by name.
func (p *podSet) list() []*config.Resource {
	if p == nil {
		return nil
	}
	var found []*config.Resource
	for _, r := range p.all() {
		if isRunning(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, compareNames)
	return found
}

// lookupLabels is like selectPods, but uses an index by label, which it builds at the first call.
func (p *podSet) lookupLabels(selector map[string]string) []*config.Resource {
	if p == nil || len(selector) == 0 {
		return nil
	}
	p.index.Do(func() {
		p.byLabel = map[label][]*config.Resource{}
		for _, r := range p.all() {
			if !isRunning(r) {
				continue
			}
			for k, v := range r.Labels {
				p.byLabel[label{k, v}] = append(p.byLabel[label{k, v}], r)
			}
		}
	})
	shortest, first := []*config.Resource(nil), true
	for k, v := range selector {
		if list := p.byLabel[label{k, v}]; first || len(list) < len(shortest) {
			shortest, first = list, false
		}
	}
	var found []*config.Resource
	for _, r := range shortest {
		if matchesSelector(selector, r.Labels) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, compareNames)
	return found
}

// isEmpty reports whether the namespace has no running pod.
func (p *podSet) isEmpty() bool {
	if p != nil {
		for _, r := range p.all() {
			if isRunning(r) {
				return false
			}
		}
	}
	return true
}

func compareNames(a, b *config.Resource) int { return strings.Compare(a.Name, b.Name) }

// pod returns a pod, or nil.
func (c *clusterIndex) pod(namespace, name string) *config.Resource {
	if set, ok := c.pods.get(namespace); ok {
		r, _ := set.get(name)
		return r
	}
	return nil
}

// locality returns the locality of a node, or "".
func (c *clusterIndex) locality(node string) string {
	if r := c.nodes[node]; r != nil {
		return r.Spec.(*config.NodeSpec).Locality
	}
	return ""
}

// podLocality returns the locality of a pod. Its label takes precedence over the locality of its node.
func (c *clusterIndex) podLocality(pod *config.Resource) string {
	if locality := localityOf("", pod.Labels); locality != "" {
		return locality
	}
	return c.locality(pod.Spec.(*config.PodSpec).Node)
}

// namespaceAnnotation returns an annotation of a namespace, or "".
func (c *clusterIndex) namespaceAnnotation(namespace, name string) string {
	if r := c.namespaces[namespace]; r != nil {
		return r.Annotations[name]
	}
	return ""
}

// network returns the network of a workload with these labels, or "".
func (c *clusterIndex) network(namespace string, labels map[string]string) string {
	if network := labels[networkLabel]; network != "" {
		return network
	}
	if r := c.namespaces[namespace]; r != nil {
		return r.Labels[networkLabel]
	}
	return ""
}

// clusterChanges describes the difference between two indexes.
type clusterChanges struct {
	any        bool
	pods       map[string][]*config.Resource // old and new versions of changed pods, by namespace
	services   map[objectName]bool           // Services whose EndpointSlices, or the pods of these, changed
	nodes      map[string]bool               // nodes whose locality changed
	namespaces map[string]bool               // namespaces whose network changed
	// distributions: the traffic distribution of a namespace changed.
	distributions bool
}

// clusterEdit creates an index from a previous one.
type clusterEdit struct {
	index     clusterIndex
	changes   clusterChanges
	podSets   map[string]*tableEdit[string, *config.Resource]
	slices    *tableEdit[objectName, *config.Resource]
	byService *tableEdit[objectName, []*config.Resource]
	podSlices *tableEdit[objectName, []string]
	// The edit has copied the maps of the index.
	ownsNodes, ownsNamespaces bool
}

func newClusterEdit(prev clusterIndex) *clusterEdit {
	return &clusterEdit{
		index: prev, podSets: map[string]*tableEdit[string, *config.Resource]{},
		changes: clusterChanges{pods: map[string][]*config.Resource{}, services: map[objectName]bool{}, nodes: map[string]bool{}, namespaces: map[string]bool{}},
	}
}

// clusterKinds are the kinds that a clusterIndex contains.
var clusterKinds = []config.Kind{config.Namespace, config.Node, config.Pod, config.EndpointSlice}

// readAll replaces all objects by those of the store.
func (e *clusterEdit) readAll(store config.Store) {
	for _, kind := range clusterKinds {
		known := map[config.Key]bool{}
		for _, r := range store.List(kind) {
			known[r.Key] = true
			e.put(r.Key, r)
		}
		for _, key := range e.keys(kind) {
			if !known[key] {
				e.put(key, nil)
			}
		}
	}
}

// keys returns the keys of all objects of a kind in the previous index.
func (e *clusterEdit) keys(kind config.Kind) []config.Key {
	var keys []config.Key
	switch kind {
	case config.Pod:
		for namespace, set := range e.index.pods.all() {
			for name := range set.all() {
				keys = append(keys, config.Key{Kind: kind, Namespace: namespace, Name: name})
			}
		}
	case config.EndpointSlice:
		for name := range e.index.slices.all() {
			keys = append(keys, config.Key{Kind: kind, Namespace: name.namespace, Name: name.name})
		}
	case config.Node:
		for name := range e.index.nodes {
			keys = append(keys, config.Key{Kind: kind, Name: name})
		}
	case config.Namespace:
		for name := range e.index.namespaces {
			keys = append(keys, config.Key{Kind: kind, Name: name})
		}
	}
	return keys
}

// put replaces one object. now is nil if the object does not exist. An equal object is no change.
func (e *clusterEdit) put(key config.Key, now *config.Resource) {
	switch key.Kind {
	case config.Pod:
		e.putPod(objectName{key.Namespace, key.Name}, now)
	case config.EndpointSlice:
		e.putSlice(objectName{key.Namespace, key.Name}, now)
	case config.Node:
		e.putNode(key.Name, now)
	case config.Namespace:
		e.putNamespace(key.Name, now)
	}
}

func (e *clusterEdit) putPod(name objectName, now *config.Resource) {
	set := e.podSets[name.namespace]
	before := e.index.pod(name.namespace, name.name)
	if set != nil {
		before, _ = set.get(name.name)
	}
	if before.Equal(now) {
		return
	}
	if set == nil {
		var pods table[string, *config.Resource]
		if old, ok := e.index.pods.get(name.namespace); ok {
			pods = old.table
		}
		set = pods.edit()
		e.podSets[name.namespace] = set
	}
	if now == nil {
		set.remove(name.name)
	} else {
		set.set(name.name, now)
	}
	e.changes.any = true
	for _, r := range []*config.Resource{before, now} {
		if r != nil {
			e.changes.pods[name.namespace] = append(e.changes.pods[name.namespace], r)
		}
	}
}

func (e *clusterEdit) putSlice(name objectName, now *config.Resource) {
	if e.slices == nil {
		e.slices, e.byService, e.podSlices = e.index.slices.edit(), e.index.byService.edit(), e.index.podSlices.edit()
	}
	before, _ := e.slices.get(name)
	if before.Equal(now) {
		return
	}
	e.changes.any = true
	e.updateServiceSlices(before, now)
	e.updatePodSlices(name, referencedPods(before), referencedPods(now))
	if now == nil {
		e.slices.remove(name)
	} else {
		e.slices.set(name, now)
	}
}

// updateServiceSlices replaces an EndpointSlice in the list of its Service. The slice may have changed its Service.
func (e *clusterEdit) updateServiceSlices(before, now *config.Resource) {
	replace := func(r *config.Resource, edit func(list []*config.Resource) []*config.Resource) {
		if r == nil || sliceSpec(r).Service == "" {
			return
		}
		service := objectName{r.Namespace, sliceSpec(r).Service}
		e.changes.services[service] = true
		list, _ := e.byService.get(service)
		if list = edit(list); len(list) == 0 {
			e.byService.remove(service)
		} else {
			e.byService.set(service, list)
		}
	}
	replace(before, func(list []*config.Resource) []*config.Resource {
		return slices.DeleteFunc(slices.Clone(list), func(r *config.Resource) bool { return r.Name == before.Name })
	})
	replace(now, func(list []*config.Resource) []*config.Resource {
		at, _ := slices.BinarySearchFunc(list, now, compareNames)
		return slices.Insert(slices.Clone(list), at, now)
	})
}

// updatePodSlices updates the names of the EndpointSlices that refer to pods, after a slice changed.
func (e *clusterEdit) updatePodSlices(slice objectName, before, now map[string]bool) {
	for pod := range before {
		if now[pod] {
			continue
		}
		name := objectName{slice.namespace, pod}
		list, _ := e.podSlices.get(name)
		if list = slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == slice.name }); len(list) == 0 {
			e.podSlices.remove(name)
		} else {
			e.podSlices.set(name, list)
		}
	}
	for pod := range now {
		if !before[pod] {
			name := objectName{slice.namespace, pod}
			list, _ := e.podSlices.get(name)
			e.podSlices.set(name, append(slices.Clip(list), slice.name))
		}
	}
}

func sliceSpec(r *config.Resource) *config.EndpointSliceSpec {
	return r.Spec.(*config.EndpointSliceSpec)
}

func referencedPods(slice *config.Resource) map[string]bool {
	if slice == nil {
		return nil
	}
	pods := map[string]bool{}
	for i := range sliceSpec(slice).Endpoints {
		if pod := sliceSpec(slice).Endpoints[i].Pod; pod != "" {
			pods[pod] = true
		}
	}
	return pods
}

func (e *clusterEdit) putNode(name string, now *config.Resource) {
	before := e.index.nodes[name]
	if before.Equal(now) {
		return
	}
	if !e.ownsNodes {
		e.index.nodes, e.ownsNodes = cloneObjects(e.index.nodes), true
	}
	setObject(e.index.nodes, name, now)
	e.changes.any, e.changes.nodes[name] = true, true
}

func (e *clusterEdit) putNamespace(name string, now *config.Resource) {
	before := e.index.namespaces[name]
	if before.Equal(now) {
		return
	}
	network, distribution := e.index.network(name, nil), e.index.namespaceAnnotation(name, distributionAnnotation)
	if !e.ownsNamespaces {
		e.index.namespaces, e.ownsNamespaces = cloneObjects(e.index.namespaces), true
	}
	setObject(e.index.namespaces, name, now)
	e.changes.any = true
	if e.index.network(name, nil) != network {
		e.changes.namespaces[name] = true
	}
	if e.index.namespaceAnnotation(name, distributionAnnotation) != distribution {
		e.changes.distributions = true
	}
}

func cloneObjects(objects map[string]*config.Resource) map[string]*config.Resource {
	out := make(map[string]*config.Resource, len(objects)+1)
	maps.Copy(out, objects)
	return out
}

// setObject replaces an object. It removes the object if now is nil.
func setObject(objects map[string]*config.Resource, name string, now *config.Resource) {
	if now == nil {
		delete(objects, name)
		return
	}
	objects[name] = now
}

// finish returns the index after all changes, and the changes.
func (e *clusterEdit) finish() (clusterIndex, clusterChanges) {
	if e.slices != nil {
		e.index.slices, e.index.byService, e.index.podSlices = e.slices.table, e.byService.table, e.podSlices.table
	}
	if len(e.podSets) > 0 {
		pods := e.index.pods.edit()
		for namespace, set := range e.podSets {
			if set.size == 0 {
				pods.remove(namespace)
			} else {
				pods.set(namespace, &podSet{table: set.table})
			}
		}
		e.index.pods = pods.table
	}
	for namespace, changed := range e.changes.pods {
		for _, pod := range changed {
			e.markServices(objectName{namespace, pod.Name})
		}
	}
	return e.index, e.changes
}

// markServices records the Services whose EndpointSlices refer to a changed pod.
func (e *clusterEdit) markServices(pod objectName) {
	names, _ := e.index.podSlices.get(pod)
	for _, name := range names {
		if slice, ok := e.index.slices.get(objectName{pod.namespace, name}); ok {
			e.changes.services[objectName{pod.namespace, sliceSpec(slice).Service}] = true
		}
	}
}
