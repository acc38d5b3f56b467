package registry

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// Build makes the registry of what is in the store. prev is the registry of before, or nil; changed names what may differ
// from what prev was built of, and nil is everything. What did not change is prev's own: the same *Service, the same
// slice of endpoints, and prev itself when all is as it was.
func Build(prev *Registry, store config.Store, opts Options, changed []config.Key) *Registry {
	opts = opts.withDefaults()
	if prev == nil || prev.opts != opts {
		prev, changed = &Registry{opts: opts}, nil
	}
	b := &builder{prev: prev, store: store, opts: opts, changed: newScope(changed)}
	b.readWorkloads()
	b.readSources()
	b.serve()
	if prev.sources != nil && !b.differs {
		return prev
	}
	return b.registry()
}

// scope is what may have changed.
type scope struct {
	all                 bool
	services, entries   bool
	workloadsNamespaces map[string]bool
}

func newScope(changed []config.Key) scope {
	s := scope{all: changed == nil, workloadsNamespaces: map[string]bool{}}
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
	changed scope

	workloads map[string]*crowd
	moved     map[string][]*workload // namespace → workloads, old and new, that are not as they were
	sources   []*source
	served    map[*Service]*served
	differs   bool
	// alike: there are the same services of the same documents as before, and only endpoints can differ.
	alike bool
}

// readWorkloads indexes the workloads of the namespaces that may have changed. What really changed is found by comparing
// with before, not taken from the caller's list: the store may be ahead of it.
func (b *builder) readWorkloads() {
	b.workloads, b.moved = b.prev.workloads, map[string][]*workload{}
	if !b.changed.all && len(b.changed.workloadsNamespaces) == 0 {
		return
	}
	b.workloads = map[string]*crowd{}
	lists := byNamespace(b.store.List(config.WorkloadEntry))
	for namespace, list := range lists {
		before := b.prev.workloads[namespace]
		if before != nil && !b.changed.all && !b.changed.workloadsNamespaces[namespace] {
			b.workloads[namespace] = before
			continue
		}
		b.workloads[namespace], b.moved[namespace] = newCrowd(list, before)
	}
	for namespace, before := range b.prev.workloads {
		if b.workloads[namespace] == nil {
			b.moved[namespace] = before.members()
		}
	}
	for _, moved := range b.moved {
		// Also where no service selects them yet: a later service may.
		b.differs = b.differs || len(moved) > 0
	}
}

func (b *builder) readSources() {
	b.alike = true
	if !b.changed.all && !b.changed.services && !b.changed.entries {
		b.sources = b.prev.sources
		return
	}
	former := formerSources{registry: b.prev}
	for _, kind := range []config.Kind{config.Service, config.ServiceEntry} {
		for _, r := range b.store.List(kind) {
			before := former.of(r)
			if before != nil && before.resource == r {
				b.sources = append(b.sources, before)
				continue
			}
			b.differs = true
			b.sources = append(b.sources, newSource(r, b.opts, before))
		}
	}
	if len(b.sources) != len(b.prev.sources) {
		b.differs = true
	}
	b.sources = nameAliases(b.opts.partAddresses(b.sources))
	b.alike = slices.EqualFunc(b.sources, b.prev.sources, (*source).alike)
}

// formerSources finds the sources of before for documents in their order, which is that of before too for nearly all.
type formerSources struct {
	registry *Registry
	next     int
}

func (f *formerSources) of(r *config.Resource) *source {
	for i := f.next; i < min(f.next+2, len(f.registry.sources)); i++ { // one may have gone
		if s := f.registry.sources[i]; s.resource == r || s.resource.Key == r.Key {
			f.next = i + 1
			return s
		}
	}
	return f.registry.bySource[r.Key]
}

// alike says whether two readings of one document have the same services, and go before others in the same way.
func (s *source) alike(o *source) bool {
	return s == o || s.resource.Key == o.resource.Key && s.resource.Created.Equal(o.resource.Created) && slices.Equal(s.services, o.services)
}

func (b *builder) serve() {
	b.served = make(map[*Service]*served, len(b.prev.served))
	if b.alike {
		b.served = maps.Clone(b.prev.served)
	}
	for at, s := range b.sources {
		if b.alike && s == b.prev.sources[at] && len(b.moved) == 0 {
			continue
		}
		fresh := b.prev.bySource[s.resource.Key] != s
		for i, service := range s.services {
			before := b.prev.served[service]
			if before != nil && !fresh && !b.selectsMoved(service) {
				b.served[service] = before
				continue
			}
			now := newServed(s, i, b.workloads[service.Namespace], b.servedBefore(service))
			b.served[service] = now
			b.differs = b.differs || before == nil || !sameServed(before, now)
		}
	}
}

func (b *builder) selectsMoved(service *Service) bool {
	for _, w := range b.moved[service.Namespace] {
		if matches(service.Selector, w.labels) {
			return true
		}
	}
	return false
}

// servedBefore is where the service of that name was served, also when the service itself has changed.
func (b *builder) servedBefore(service *Service) *served {
	for _, old := range b.prev.byHost[service.Hostname] {
		if old.Namespace == service.Namespace {
			return b.prev.served[old]
		}
	}
	return nil
}

func sameServed(a, b *served) bool {
	return slices.EqualFunc(a.endpoints, b.endpoints, Endpoint.equal) && slices.EqualFunc(a.datagrams, b.datagrams, Endpoint.equal) &&
		slices.Equal(a.problems, b.problems)
}

func (b *builder) registry() *Registry {
	if b.alike && len(b.prev.Problems) == 0 && !b.anyProblems() {
		return b.withOtherEndpoints()
	}
	r := &Registry{
		byHost: make(map[string][]*Service, len(b.served)), opts: b.opts, aliases: map[string]string{}, targets: map[string]string{},
		sources: b.sources, bySource: make(map[config.Key]*source, len(b.sources)),
		workloads: b.workloads, served: b.served,
	}
	for _, s := range b.sources {
		r.bySource[s.resource.Key] = s
		r.Problems = append(r.Problems, s.problems...)
		for _, service := range s.services {
			r.Problems = append(r.Problems, b.served[service].problems...)
		}
	}
	r.Problems = append(r.Problems, r.admit(b.sources)...)
	r.Problems = append(r.Problems, r.aliasProblems()...)
	return r
}

// anyProblems says whether there are any of documents, and of endpoints, that are not as before.
func (b *builder) anyProblems() bool {
	for at, s := range b.sources {
		if s == b.prev.sources[at] && len(b.moved) == 0 {
			continue
		}
		if len(s.problems) > 0 || slices.ContainsFunc(s.services, func(service *Service) bool { return len(b.served[service].problems) > 0 }) {
			return true
		}
	}
	return false
}

// withOtherEndpoints is the registry of before, with all its names, but for where services are served.
func (b *builder) withOtherEndpoints() *Registry {
	r := *b.prev
	r.sources, r.workloads, r.served = b.sources, b.workloads, b.served
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

// admit lists the services of the sources, the older before the younger, and says what is in the way of the others.
func (r *Registry) admit(sources []*source) []config.Problem {
	var problems []config.Problem
	for _, s := range bySeniority(sources) {
		for i, service := range s.services {
			if service.AliasOf != "" {
				continue
			}
			rival := rivalOf(service, r.byHost[service.Hostname])
			if rival != nil {
				problems = append(problems, rivalry(s, i, rival, r.bySource[rival.Source]))
			}
			if rival != nil && rival.Namespace == service.Namespace {
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
