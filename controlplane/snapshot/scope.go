package snapshot

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"

	networking "istio.io/api/networking/v1alpha3"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Scope is what the proxies of one namespace that share a Sidecar resource (or have none) see of the mesh. Immutable:
// as long as nothing they see changes, except endpoints, the pointer stays the same from snapshot to snapshot.
type Scope struct {
	Namespace string
	// Sidecar is the resource that narrows the scope; nil when none does.
	Sidecar *config.Resource
	// AllowAny: calls to hosts that the mesh does not know go out.
	AllowAny bool
	// Services are those that are seen, by hostname; of one hostname there is one.
	Services []*registry.Service
	// VirtualServices are those for sidecars, the oldest first.
	VirtualServices []*VirtualService
	// SourceLabels are the labels of callers that those rules ask for, sorted.
	SourceLabels []string

	mesh     *meshconfig.MeshConfig
	resolve  resolver
	naming   *naming
	services map[string]*registry.Service // by hostname
	aliases  map[string]*registry.Service // by the hostnames of aliases that are seen
	rules    map[*registry.Service]*DestinationRule
	own      hostTable[*DestinationRule] // rules for some callers only, of whom the scope's proxies are
	vsByHost hostTable[*VirtualService]
	egress   egressHosts
	perPort  *perPort            // where a Sidecar has listeners of ports
	cache    *Cache              // of what depends on the whole scope
	memory   sync.Map            // what others derived of the scope, by their keys
	common   *common             // that it shares with others; nil where it does not
	targets  map[string]struct{} // hosts that the rules route to, where a Sidecar narrows the scope
}

// Memo gives what was derived of the scope under a key, and has it made if it was not. The key has to hold all that it
// depends on beside the scope.
func (sc *Scope) Memo(key any, derive func() any) any { return memo(&sc.memory, key, derive) }

// Cache holds resources that depend on the scope as a whole, and goes with it.
func (sc *Scope) Cache() *Cache { return sc.cache }

func memo(memory *sync.Map, key any, derive func() any) any {
	made, ok := memory.Load(key)
	if !ok {
		made, _ = memory.LoadOrStore(key, sync.OnceValue(derive))
	}
	return made.(func() any)()
}

// Resolve finds the service that a document of the namespace means by a host, which may be an alias; nil when it is not seen.
func (sc *Scope) Resolve(host, namespace string) *registry.Service {
	return sc.Named(sc.resolve(host, namespace))
}

// Named finds a service by its full name or that of an alias; nil when it is not seen.
func (sc *Scope) Named(hostname string) *registry.Service {
	if svc := sc.services[hostname]; svc != nil {
		return svc
	}
	return sc.aliases[hostname]
}

// Names are the services whose names requests for a service may have: itself, and those of its aliases that are seen.
func (sc *Scope) Names(svc *registry.Service) iter.Seq[*registry.Service] {
	return func(yield func(*registry.Service) bool) {
		for known := range svc.WithAliases() {
			if (known == svc || sc.aliases[known.Hostname] == svc) && !yield(known) {
				return
			}
		}
	}
}

// Hostname gives the full name of a host as a document of the namespace writes it, whether it is seen or not.
func (sc *Scope) Hostname(host, namespace string) string { return sc.resolve(host, namespace) }

// DestinationRule is the rule for calls to a service from here; nil when there is none.
func (sc *Scope) DestinationRule(svc *registry.Service) *DestinationRule { return sc.rules[svc] }

// VirtualService is the rule that sidecars follow for a host: the one with the most specific matching name, and of one
// name the oldest. Nil when there is none.
func (sc *Scope) VirtualService(host string) *VirtualService {
	v, _ := sc.vsByHost.find(host)
	return v
}

// world is all that scopes are made of. It stays the same while only endpoints, policies and gateways change.
type world struct {
	mesh             *meshconfig.MeshConfig
	resolve          resolver
	naming           *naming
	services         []*registry.Service
	byHost           map[string][]*registry.Service
	virtualServices  *virtualServices
	destinationRules *destinationRules
	sidecars         map[string][]*config.Resource // by namespace, the oldest first

	cache *Cache // to be told how much there is

	claims claims // read by claimed

	mu     sync.Mutex
	scopes map[scopeKey]*Scope
	// before are the scopes of the world before this one: a scope that turns out equal is taken over.
	before map[scopeKey]*Scope
	had    int // how many scopes that one had

	common      *common // read by shared
	sharedKnown bool
}

type scopeKey struct {
	namespace string
	sidecar   config.Key
	// callers tells those apart for whom other DestinationRules count than for the rest of the namespace.
	callers string
}

// Scope is the scope of a workload with these labels.
func (s *Snapshot) Scope(namespace string, labels map[string]string) *Scope {
	sidecar := s.world.sidecar(namespace, labels)
	key := scopeKey{namespace: namespace}
	if sidecar != nil {
		key.sidecar = sidecar.Key
	}
	return s.world.scope(key, sidecar, labels)
}

// GatewayScope is the scope of a router with these labels: Sidecar resources do not narrow it.
func (s *Snapshot) GatewayScope(namespace string, labels map[string]string) *Scope {
	return s.world.scope(scopeKey{namespace: namespace, sidecar: config.Key{Kind: config.Gateway}}, nil, labels)
}

// scope makes a scope when it is first asked for, or takes over an equal one of the world before.
func (w *world) scope(key scopeKey, sidecar *config.Resource, labels map[string]string) *Scope {
	own, choice := w.destinationRules.forCaller(key.namespace, labels)
	key.callers = choice
	w.mu.Lock()
	defer w.mu.Unlock()
	if sc := w.scopes[key]; sc != nil {
		return sc
	}
	sc := w.newScope(key.namespace, sidecar, own)
	if old := w.before[key]; old != nil && sc.equal(old) {
		sc = old
	}
	delete(w.before, key) // or all that was made of it would stay
	w.scopes[key] = sc
	// Of each port and subset there are a cluster and its endpoints, and routes in each scope.
	w.cache.expect(w.parts() * (3 + max(len(w.scopes), w.had)))
	return sc
}

// parts are the ports of services and the subsets of rules, of which clusters and routes are made.
func (w *world) parts() int {
	n := 0
	for _, svc := range w.services {
		n += len(svc.Ports)
	}
	for _, d := range w.destinationRules.all {
		n += len(d.Subsets)
	}
	return n
}

// sidecar finds the Sidecar resource of a workload: one that selects it, one of its namespace, or the root namespace's.
func (w *world) sidecar(namespace string, labels map[string]string) *config.Resource {
	var whole *config.Resource
	for _, r := range w.sidecars[namespace] {
		selector := r.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()
		switch {
		case len(selector) == 0:
			if whole == nil {
				whole = r
			}
		case Selects(selector, labels):
			return r
		}
	}
	if whole != nil {
		return whole
	}
	for _, r := range w.sidecars[w.mesh.GetRootNamespace()] {
		if len(r.Spec.(*networking.Sidecar).GetWorkloadSelector().GetLabels()) == 0 {
			return r
		}
	}
	return nil
}

func (w *world) newScope(namespace string, sidecar *config.Resource, own map[string]*DestinationRule) *Scope {
	sc := &Scope{
		Namespace: namespace,
		Sidecar:   sidecar,
		AllowAny:  w.mesh.GetOutboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY,
		mesh:      w.mesh,
		resolve:   w.resolve,
		naming:    w.naming,
		cache:     newCache(),
		rules:     map[*registry.Service]*DestinationRule{},
		own:       newHostTable(own),
	}
	egress := everything
	if sidecar != nil {
		spec := sidecar.Spec.(*networking.Sidecar)
		egress, sc.perPort = newEgress(spec, namespace), newPerPort(spec, namespace)
		if p := spec.GetOutboundTrafficPolicy(); p != nil {
			sc.AllowAny = p.GetMode() == networking.OutboundTrafficPolicy_ALLOW_ANY
		}
	}
	sc.egress = egress
	if c := w.shared(); c != nil && sidecar == nil {
		w.share(sc, c)
		return sc
	}
	w.addVirtualServices(sc, egress)
	w.addServices(sc)
	return sc
}

func (w *world) addVirtualServices(sc *Scope, egress egressHosts) {
	byHost := map[string]*VirtualService{}
	for _, v := range w.virtualServices.byGateway[MeshGateway] {
		if !v.VisibleTo(sc.Namespace) {
			continue
		}
		seen := false
		for _, h := range v.Hosts {
			if !egress.see(v.Namespace, h) {
				continue
			}
			seen = true
			if byHost[h] == nil {
				byHost[h] = v
			}
		}
		if seen {
			sc.VirtualServices = append(sc.VirtualServices, v)
		}
	}
	sc.vsByHost = newHostTable(byHost)
	sc.SourceLabels = sourceLabels(sc.VirtualServices)
}

func sourceLabels(rules []*VirtualService) []string {
	names := map[string]struct{}{}
	for _, v := range rules {
		for _, r := range v.Spec.GetHttp() {
			for _, m := range r.GetMatch() {
				addKeys(names, m.GetSourceLabels())
			}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

func addKeys(set map[string]struct{}, m map[string]string) {
	for k := range m {
		set[k] = struct{}{}
	}
}

func (w *world) addServices(sc *Scope) {
	// What rules route to is seen too, even if the Sidecar does not list it: else the rule would lead nowhere.
	sc.targets, sc.services, sc.aliases = map[string]struct{}{}, map[string]*registry.Service{}, map[string]*registry.Service{}
	if sc.Sidecar != nil {
		for _, v := range sc.VirtualServices {
			for d := range destinations(v.Spec) {
				sc.targets[w.resolve(d.destination.GetHost(), v.Namespace)] = struct{}{}
			}
		}
		w.addProviders(sc)
		if _, host := sc.EgressProxy(); host != "" {
			sc.targets[host] = struct{}{}
		}
	}
	for i := 0; i < len(w.services); {
		host := w.services[i].Hostname
		var chosen *registry.Service
		for ; i < len(w.services) && w.services[i].Hostname == host; i++ {
			if svc := w.services[i]; sc.MaySee(svc) && preferred(svc, chosen, sc.Namespace) {
				chosen = svc
			}
		}
		if chosen != nil {
			w.addService(sc, chosen)
		}
	}
}

// MaySee says whether a service, present or past, is for the scope's proxies to see (unless another of its hostname is
// preferred). Who sees an alias of it sees the service.
func (sc *Scope) MaySee(svc *registry.Service) bool {
	if !svc.VisibleTo(sc.Namespace) {
		return false
	}
	return sc.lists(svc) || slices.ContainsFunc(svc.AliasServices, sc.maySeeAlias)
}

// maySeeAlias says whether a name of a service is for the scope's proxies, if that is.
func (sc *Scope) maySeeAlias(alias *registry.Service) bool {
	return alias.VisibleTo(sc.Namespace) && sc.lists(alias)
}

// lists says whether the Sidecar, if there is one, lists a service, or rules lead there.
func (sc *Scope) lists(svc *registry.Service) bool {
	_, target := sc.targets[svc.Hostname]
	return target || sc.egress.see(svc.Namespace, svc.Hostname)
}

// preferred says whether a service is to be had rather than another of the same hostname: the caller's own namespace
// first, then Kubernetes Services, then the first namespace.
func preferred(svc, other *registry.Service, namespace string) bool {
	switch {
	case other == nil:
		return true
	case (svc.Namespace == namespace) != (other.Namespace == namespace):
		return svc.Namespace == namespace
	}
	return svc.Kubernetes && !other.Kubernetes
}

func (w *world) addService(sc *Scope, svc *registry.Service) {
	sc.Services = append(sc.Services, svc)
	sc.services[svc.Hostname] = svc
	for _, alias := range svc.AliasServices {
		if sc.maySeeAlias(alias) {
			sc.aliases[alias.Hostname] = svc
		}
	}
	w.addRule(sc, svc)
}

func (w *world) addRule(sc *Scope, svc *registry.Service) {
	if d, ok := sc.own.find(svc.Hostname); ok {
		sc.rules[svc] = d
		return
	}
	if d := w.destinationRules.lookup(sc.Namespace, svc.Hostname, svc.Namespace); d != nil {
		sc.rules[svc] = d
	}
}

// equal says whether two scopes are one and the same to whoever is configured by them.
func (sc *Scope) equal(o *Scope) bool {
	if sc.mesh != o.mesh || sc.naming != o.naming || sc.Sidecar != o.Sidecar || sc.AllowAny != o.AllowAny || len(sc.rules) != len(o.rules) ||
		!equalPointers(sc.Services, o.Services) || !equalPointers(sc.VirtualServices, o.VirtualServices) {
		return false
	}
	for svc, d := range sc.rules {
		if o.rules[svc] != d {
			return false
		}
	}
	return true
}

// egressHosts is what a Sidecar's egress listeners let its workloads see.
type egressHosts struct {
	all   bool
	hosts []egressHost
}

type egressHost struct{ namespace, host string }

var everything = egressHosts{all: true}

func newEgress(spec *networking.Sidecar, namespace string) egressHosts {
	if len(spec.GetEgress()) == 0 {
		return everything
	}
	var e egressHosts
	for _, listener := range spec.GetEgress() {
		for _, h := range listener.GetHosts() {
			ns, host, ok := strings.Cut(h, "/")
			if !ok {
				ns, host = "*", h
			}
			if ns == "." {
				ns = namespace
			}
			e.hosts = append(e.hosts, egressHost{ns, host})
		}
	}
	return e
}

func (e egressHosts) see(namespace, host string) bool {
	if e.all {
		return true
	}
	for _, h := range e.hosts {
		if (h.namespace == "*" || h.namespace == namespace) && overlapHosts(h.host, host) {
			return true
		}
	}
	return false
}

// Service finds a service by its full name; nil when it is not seen.
func (sc *Scope) Service(hostname string) *registry.Service { return sc.services[hostname] }

// Covers says whether a host of a rule, which may be a pattern, is the name of a service that is seen.
func (sc *Scope) Covers(host string) bool {
	if sc.Named(host) != nil {
		return true
	}
	if !strings.HasPrefix(host, "*") {
		return false
	}
	return slices.ContainsFunc(sc.Services, func(svc *registry.Service) bool { return MatchHost(host, svc.Hostname) })
}
