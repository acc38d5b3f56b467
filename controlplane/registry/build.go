package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Build returns the registry of a store. prev is the previous registry, or nil. changed contains the keys of documents
// that may differ from prev; nil stands for all. The result shares unchanged *Service values and slices of endpoints
// with prev. If nothing changed, Build returns prev.
func Build(prev *Registry, store config.Store, opts Options, changed []config.Key) *Registry {
	opts = opts.withDefaults()
	if prev == nil || prev.opts != opts {
		prev, changed = &Registry{opts: opts}, nil
	}
	b := &builder{prev: prev, store: store, opts: opts, changed: newChangeSet(changed)}
	b.readCluster(changed)
	b.readWorkloads()
	b.readSources()
	b.buildEndpoints()
	if prev.sources != nil && !b.endpointsDiffer {
		return prev
	}
	return b.registry()
}

// changeSet contains the keys that may have changed.
type changeSet struct {
	all                 bool
	services, entries   bool
	workloadsNamespaces map[string]bool
}

func newChangeSet(changed []config.Key) changeSet {
	s := changeSet{all: changed == nil, workloadsNamespaces: map[string]bool{}}
	for _, key := range changed {
		switch key.Kind {
		case config.Service:
			s.services = true
		case config.ServiceEntry:
			s.entries = true
		case config.WorkloadEntry:
			s.workloadsNamespaces[key.Namespace] = true
		}
	}
	return s
}

type builder struct {
	prev    *Registry
	store   config.Store
	opts    Options
	changed changeSet

	workloads        map[string]*workloadIndex
	changedWorkloads map[string][]*workload // changed workloads by namespace, in the old and new versions
	sources          []*source
	endpoints        map[*Service]*serviceEndpoints
	endpointsDiffer  bool
	// sameServices: all documents define the same services as before, so only endpoints can differ.
	sameServices bool

	cluster        clusterIndex
	clusterChanges clusterChanges
}

// readCluster updates the index of the cluster's objects. It reads only the changed objects, so the cost of a change
// does not depend on the number of pods.
func (b *builder) readCluster(changed []config.Key) {
	edit := newClusterEdit(b.prev.cluster)
	if b.changed.all {
		edit.readAll(b.store)
	}
	for _, key := range changed {
		if slices.Contains(clusterKinds, key.Kind) {
			edit.put(key, b.store.Get(key))
		}
	}
	b.cluster, b.clusterChanges = edit.finish()
	b.endpointsDiffer = b.clusterChanges.any // a later build needs the new index
}

// readWorkloads indexes the workloads of the namespaces that may have changed. It compares the workloads to find all
// actual changes, because the store may already contain changes that are not in the caller's list.
func (b *builder) readWorkloads() {
	b.workloads, b.changedWorkloads = b.prev.workloads, map[string][]*workload{}
	if !b.changed.all && len(b.changed.workloadsNamespaces) == 0 {
		return
	}
	b.workloads = map[string]*workloadIndex{}
	lists := groupByNamespace(b.store.List(config.WorkloadEntry))
	for namespace, list := range lists {
		before := b.prev.workloads[namespace]
		if before != nil && !b.changed.all && !b.changed.workloadsNamespaces[namespace] {
			b.workloads[namespace] = before
			continue
		}
		b.workloads[namespace], b.changedWorkloads[namespace] = newWorkloadIndex(list, b.opts, before)
	}
	for namespace, before := range b.prev.workloads {
		if b.workloads[namespace] == nil {
			b.changedWorkloads[namespace] = before.members()
		}
	}
	for _, moved := range b.changedWorkloads {
		// Workloads that no service selects count too, because a service in a later build may select them.
		b.endpointsDiffer = b.endpointsDiffer || len(moved) > 0
	}
}

func (b *builder) readSources() {
	b.sameServices = true
	if !b.changed.all && !b.changed.services && !b.changed.entries && !b.clusterChanges.distributions {
		b.sources = b.prev.sources
		return
	}
	former := previousSources{registry: b.prev}
	for _, kind := range []config.Kind{config.Service, config.ServiceEntry} {
		for _, r := range b.store.List(kind) {
			before := former.lookup(r)
			inherited := b.cluster.namespaceAnnotation(r.Namespace, distributionAnnotation)
			if before != nil && before.resource == r && before.inherited == inherited {
				b.sources = append(b.sources, before)
				continue
			}
			b.endpointsDiffer = true
			b.sources = append(b.sources, newSource(r, b.opts, inherited, before))
		}
	}
	if len(b.sources) != len(b.prev.sources) {
		b.endpointsDiffer = true
	}
	b.sources = nameAliases(b.opts.resolveAddressConflicts(b.sources))
	b.sameServices = slices.EqualFunc(b.sources, b.prev.sources, (*source).isEquivalent)
}

// previousSources looks up the previous source of each document. It relies on the order of documents, which rarely
// changes.
type previousSources struct {
	registry *Registry
	next     int
}

func (f *previousSources) lookup(r *config.Resource) *source {
	for i := f.next; i < min(f.next+2, len(f.registry.sources)); i++ { // one document may have been removed since the previous build
		if s := f.registry.sources[i]; s.resource == r || s.resource.Key == r.Key {
			f.next = i + 1
			return s
		}
	}
	return f.registry.bySource[r.Key]
}

// isEquivalent reports whether two sources of the same document define the same services with the same precedence.
func (s *source) isEquivalent(o *source) bool {
	return s == o || s.resource.Key == o.resource.Key && s.resource.Created.Equal(o.resource.Created) && slices.Equal(s.services, o.services)
}

func (b *builder) buildEndpoints() {
	b.endpoints = make(map[*Service]*serviceEndpoints, len(b.prev.endpoints))
	if b.sameServices {
		b.endpoints = maps.Clone(b.prev.endpoints)
	}
	for at, s := range b.sources {
		same := b.sameServices && s == b.prev.sources[at]
		if same && len(b.changedWorkloads) == 0 && !b.clusterChanges.any {
			continue
		}
		fresh := !same && b.prev.bySource[s.resource.Key] != s
		for i, service := range s.services {
			affected := fresh || b.isAffected(service)
			if same && !affected {
				continue // the copy of the previous endpoints contains them
			}
			before := b.prev.endpoints[service]
			if before != nil && !affected {
				b.endpoints[service] = before
				continue
			}
			now := b.newServiceEndpoints(s, i, b.previousEndpoints(service))
			b.endpoints[service] = now
			b.endpointsDiffer = b.endpointsDiffer || before == nil || !equalEndpoints(before, now)
		}
	}
}

// isAffected reports whether the changes of workloads and of the cluster's objects may affect the endpoints of a
// service that itself has not changed.
func (b *builder) isAffected(service *Service) bool {
	for _, w := range b.changedWorkloads[service.Namespace] {
		if matchesSelector(service.Selector, w.labels) {
			return true
		}
	}
	changes := &b.clusterChanges
	switch {
	case !changes.any:
		return false
	case changes.namespaces[service.Namespace], service.Kubernetes && changes.services[objectName{service.Namespace, service.Name}]:
		return true
	case !service.Kubernetes && slices.ContainsFunc(changes.pods[service.Namespace], func(pod *config.Resource) bool { return matchesSelector(service.Selector, pod.Labels) }):
		return true
	}
	return len(changes.nodes) > 0 && b.hasEndpointsOn(service, changes.nodes)
}

func (b *builder) hasEndpointsOn(service *Service, nodes map[string]bool) bool {
	before := b.prev.endpoints[service]
	onNode := func(e Endpoint) bool { return nodes[e.Node] }
	return before != nil && (slices.ContainsFunc(before.endpoints, onNode) || slices.ContainsFunc(before.datagrams, onNode))
}

// previousEndpoints returns the previous endpoints of the service with the same hostname and namespace, or nil.
func (b *builder) previousEndpoints(service *Service) *serviceEndpoints {
	for _, old := range b.prev.byHost[service.Hostname] {
		if old.Namespace == service.Namespace {
			return b.prev.endpoints[old]
		}
	}
	return nil
}

func equalEndpoints(a, b *serviceEndpoints) bool {
	return slices.EqualFunc(a.endpoints, b.endpoints, Endpoint.equal) && slices.EqualFunc(a.datagrams, b.datagrams, Endpoint.equal) &&
		slices.Equal(a.problems, b.problems)
}

func (b *builder) registry() *Registry {
	if b.sameServices && len(b.prev.Problems) == 0 && !b.hasNewProblems() {
		return b.withNewEndpoints()
	}
	r := &Registry{
		byHost: make(map[string][]*Service, len(b.endpoints)), opts: b.opts, aliases: map[string]string{}, targets: map[string]string{},
		sources: b.sources, bySource: make(map[config.Key]*source, len(b.sources)),
		workloads: b.workloads, cluster: b.cluster, endpoints: b.endpoints,
	}
	for _, s := range b.sources {
		r.bySource[s.resource.Key] = s
		r.Problems = append(r.Problems, s.problems...)
		for _, service := range s.services {
			r.Problems = append(r.Problems, b.endpoints[service].problems...)
		}
	}
	for _, namespace := range slices.Sorted(maps.Keys(b.workloads)) {
		for _, w := range b.workloads[namespace].all {
			r.Problems = append(r.Problems, w.problems...)
		}
	}
	r.Problems = append(r.Problems, r.addServices(b.sources)...)
	r.Problems = append(r.Problems, r.checkAliases()...)
	return r
}

// hasNewProblems reports whether any changed document or workload has a problem.
func (b *builder) hasNewProblems() bool {
	for at, s := range b.sources {
		if s == b.prev.sources[at] && len(b.changedWorkloads) == 0 && !b.clusterChanges.any {
			continue
		}
		if len(s.problems) > 0 || slices.ContainsFunc(s.services, func(service *Service) bool { return len(b.endpoints[service].problems) > 0 }) {
			return true
		}
	}
	for _, moved := range b.changedWorkloads {
		if slices.ContainsFunc(moved, func(w *workload) bool { return len(w.problems) > 0 }) {
			return true
		}
	}
	return false
}

// withNewEndpoints returns a copy of the previous registry in which only the endpoints are replaced.
func (b *builder) withNewEndpoints() *Registry {
	r := *b.prev
	r.sources, r.workloads, r.cluster, r.endpoints = b.sources, b.workloads, b.cluster, b.endpoints
	r.bySource = b.prev.bySource
	if len(b.sources) > 0 && &b.sources[0] != &b.prev.sources[0] {
		r.bySource = maps.Clone(b.prev.bySource)
		for at, s := range b.sources {
			if s != b.prev.sources[at] {
				r.bySource[s.resource.Key] = s
			}
		}
	}
	return &r
}

// addServices adds the services of the sources, in order of precedence. It returns findings about services whose
// hostname a preceding service already has.
func (r *Registry) addServices(sources []*source) []config.Problem {
	var problems []config.Problem
	for _, s := range sortByPrecedence(sources) {
		for i, service := range s.services {
			if service.AliasOf != "" {
				continue
			}
			winner := findConflict(service, r.byHost[service.Hostname])
			if winner != nil {
				problems = append(problems, conflictProblem(s, i, winner, r.bySource[winner.Source]))
			}
			if winner != nil && winner.Namespace == service.Namespace {
				continue
			}
			r.byHost[service.Hostname] = append(r.byHost[service.Hostname], service)
			r.Services = append(r.Services, service)
			for known := range service.WithAliases() {
				for _, short := range known.Aliases {
					r.aliases[short] = known.Hostname
				}
			}
			for _, alias := range service.AliasServices {
				r.targets[alias.Hostname] = service.Hostname
			}
		}
	}
	order := func(a, b *Service) int {
		return cmp.Or(cmp.Compare(a.Hostname, b.Hostname), cmp.Compare(a.Namespace, b.Namespace))
	}
	slices.SortFunc(r.Services, order)
	for _, services := range r.byHost {
		slices.SortFunc(services, order)
	}
	return problems
}
