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

// Scope is the visible part of the mesh for the proxies of one namespace with the same Sidecar resource (or none). It
// is immutable. Snapshots share the pointer until a visible part other than endpoints changes.
type Scope struct {
	Namespace string
	// Sidecar is the resource that limits the scope, or nil.
	Sidecar *config.Resource
	// AllowAny: proxies forward requests to unknown hosts to their original destination.
	AllowAny bool
	// Services are the visible services, sorted by hostname. Each hostname has one service.
	Services []*registry.Service
	// VirtualServices are the rules for sidecars, in order of precedence.
	VirtualServices []*VirtualService
	// SourceLabels contains the sorted keys of the labels by which these rules match clients.
	SourceLabels []string

	mesh           *meshconfig.MeshConfig
	resolve        resolver
	naming         *nameVersion
	services       map[string]*registry.Service // by hostname
	aliases        map[string]*registry.Service // by the hostnames of visible aliases
	rules          map[*registry.Service]*DestinationRule
	selectiveRules hostTable[*DestinationRule] // rules whose workload selector matches the proxies of the scope
	vsByHost       hostTable[*VirtualService]
	egress         EgressHosts
	perPort        *portEgress         // set if a Sidecar has listeners with ports
	cache          *Cache              // cache of the resources that depend on the whole scope
	memos          sync.Map            // derived values by key
	common         *sharedView         // nil if the scope shares nothing
	targets        map[string]struct{} // destinations of the rules; set if a Sidecar limits the scope
}

// Memo returns the cached value of a key, and derives it at the first call. The key must contain everything on which
// the value depends, except the scope.
func (sc *Scope) Memo(key any, derive func() any) any { return loadMemo(&sc.memos, key, derive) }

// Cache returns the cache of the resources that depend on the whole scope. The cache is freed together with the scope.
func (sc *Scope) Cache() *Cache { return sc.cache }

func loadMemo(memory *sync.Map, key any, derive func() any) any {
	made, ok := memory.Load(key)
	if !ok {
		made, _ = memory.LoadOrStore(key, sync.OnceValue(derive))
	}
	return made.(func() any)()
}

// Resolve returns the service to which host refers, as written in a document of namespace. The host may be an alias. It
// returns nil if the service is not visible.
func (sc *Scope) Resolve(host, namespace string) *registry.Service {
	return sc.ServiceByName(sc.resolve(host, namespace))
}

// ServiceByName returns the visible service whose hostname, or the hostname of a visible alias, is hostname. It returns
// nil if there is none.
func (sc *Scope) ServiceByName(hostname string) *registry.Service {
	if svc := sc.services[hostname]; svc != nil {
		return svc
	}
	return sc.aliases[hostname]
}

// VisibleNames returns the service and its visible aliases. Requests may use the names of all of them.
func (sc *Scope) VisibleNames(svc *registry.Service) iter.Seq[*registry.Service] {
	return func(yield func(*registry.Service) bool) {
		for known := range svc.WithAliases() {
			if (known == svc || sc.aliases[known.Hostname] == svc) && !yield(known) {
				return
			}
		}
	}
}

// Hostname returns the full name of host, as written in a document of namespace. The host need not be visible or exist.
func (sc *Scope) Hostname(host, namespace string) string { return sc.resolve(host, namespace) }

// DestinationRule returns the rule for calls to a service, or nil if there is none.
func (sc *Scope) DestinationRule(svc *registry.Service) *DestinationRule { return sc.rules[svc] }

// VirtualService returns the sidecar rule for host, or nil. If several rules match, it returns the rule with the most
// specific host. If several rules have this host, it returns the one that takes precedence.
func (sc *Scope) VirtualService(host string) *VirtualService {
	v, _ := sc.vsByHost.find(host)
	return v
}

// meshIndex contains the inputs of scopes. Snapshots that differ only in endpoints, policies and gateways share one
// meshIndex.
type meshIndex struct {
	mesh             *meshconfig.MeshConfig
	resolve          resolver
	naming           *nameVersion
	services         []*registry.Service
	byHost           map[string][]*registry.Service
	virtualServices  *virtualServices
	destinationRules *destinationRules
	sidecars         map[string][]*config.Resource // by namespace, oldest first

	cache *Cache // for setExpected

	dependents hostDependents // do not read directly; call hostDependents()

	mu     sync.Mutex
	scopes map[scopeKey]*Scope
	// previousScopes contains the scopes of the previous index. Equal scopes are reused.
	previousScopes     map[scopeKey]*Scope
	previousScopeCount int // the number of scopes of the previous index

	common      *sharedView // do not read directly; call shared()
	sharedKnown bool
}

type scopeKey struct {
	namespace string
	sidecar   config.Key
	// callers identifies the rules whose workload selector matches the proxies of the scope.
	callers string
}

// Scope returns the scope of a workload.
func (s *Snapshot) Scope(namespace string, labels map[string]string) *Scope {
	sidecar := s.index.sidecar(namespace, labels)
	key := scopeKey{namespace: namespace}
	if sidecar != nil {
		key.sidecar = sidecar.Key
	}
	return s.index.scope(key, sidecar, labels)
}

// GatewayScope returns the scope of a router. Sidecar resources do not limit it.
func (s *Snapshot) GatewayScope(namespace string, labels map[string]string) *Scope {
	return s.index.scope(scopeKey{namespace: namespace, sidecar: config.Key{Kind: config.Gateway}}, nil, labels)
}

// scope returns the scope for a key. At the first call it builds the scope, or reuses an equal scope of the previous
// index.
func (w *meshIndex) scope(key scopeKey, sidecar *config.Resource, labels map[string]string) *Scope {
	own, choice := w.destinationRules.forCaller(key.namespace, labels)
	key.callers = choice
	w.mu.Lock()
	defer w.mu.Unlock()
	if sc := w.scopes[key]; sc != nil {
		return sc
	}
	sc := w.newScope(key.namespace, sidecar, own)
	if old := w.previousScopes[key]; old != nil && sc.equal(old) {
		sc = old
	}
	delete(w.previousScopes, key) // allows the previous scope to be freed
	w.scopes[key] = sc
	// In each scope, every port and every subset has a cluster, endpoints and routes.
	w.cache.setExpected(w.partCount() * (3 + max(len(w.scopes), w.previousScopeCount)))
	return sc
}

// partCount returns the number of service ports and subsets. Each of them has clusters and routes.
func (w *meshIndex) partCount() int {
	n := 0
	for _, svc := range w.services {
		n += len(svc.Ports)
	}
	for _, d := range w.destinationRules.all {
		n += len(d.Subsets)
	}
	return n
}

// sidecar returns the Sidecar resource of a workload: the Sidecar that selects the workload, or else the Sidecar for
// the complete namespace, or else the Sidecar of the root namespace. It returns nil if there is none.
func (w *meshIndex) sidecar(namespace string, labels map[string]string) *config.Resource {
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

func (w *meshIndex) newScope(namespace string, sidecar *config.Resource, own map[string]*DestinationRule) *Scope {
	sc := &Scope{
		Namespace:      namespace,
		Sidecar:        sidecar,
		AllowAny:       w.mesh.GetOutboundTrafficPolicy().GetMode() == meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY,
		mesh:           w.mesh,
		resolve:        w.resolve,
		naming:         w.naming,
		cache:          newCache(),
		rules:          map[*registry.Service]*DestinationRule{},
		selectiveRules: newHostTable(own),
	}
	egress := allHosts
	if sidecar != nil {
		spec := sidecar.Spec.(*networking.Sidecar)
		egress, sc.perPort = NewEgressHosts(spec, namespace), newPortEgress(spec, namespace)
		if p := spec.GetOutboundTrafficPolicy(); p != nil {
			sc.AllowAny = p.GetMode() == networking.OutboundTrafficPolicy_ALLOW_ANY
		}
	}
	sc.egress = egress
	if c := w.shared(); c != nil && sidecar == nil {
		w.applyShared(sc, c)
		return sc
	}
	w.addVirtualServices(sc, egress)
	w.addServices(sc)
	return sc
}

func (w *meshIndex) addVirtualServices(sc *Scope, egress EgressHosts) {
	byHost := map[string]*VirtualService{}
	for _, v := range sortForNamespace(w.virtualServices.byGateway[MeshGateway], sc.Namespace) {
		seen := false
		for _, h := range v.Hosts {
			if !egress.Contains(v.Namespace, h) {
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

func (w *meshIndex) addServices(sc *Scope) {
	// Destinations of visible rules are visible even if the Sidecar does not list them, because the rules would not
	// work otherwise.
	sc.targets, sc.services, sc.aliases = map[string]struct{}{}, map[string]*registry.Service{}, map[string]*registry.Service{}
	if sc.Sidecar != nil {
		for _, v := range sc.VirtualServices {
			for d := range Destinations(v.Spec) {
				sc.targets[w.resolve(d.Destination.GetHost(), v.Namespace)] = struct{}{}
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
			if svc := w.services[i]; sc.CanSee(svc) && isPreferred(svc, chosen, sc.Namespace) {
				chosen = svc
			}
		}
		if chosen != nil {
			w.addService(sc, chosen)
		}
	}
}

// CanSee reports whether a service may be visible in the scope. The service may have been removed, or another service
// with the same hostname may hide it. A visible alias makes the service visible.
func (sc *Scope) CanSee(svc *registry.Service) bool {
	if !svc.VisibleTo(sc.Namespace) {
		return false
	}
	return sc.isListed(svc) || slices.ContainsFunc(svc.AliasServices, sc.maySeeAlias)
}

// maySeeAlias reports whether an alias of a visible service is itself visible.
func (sc *Scope) maySeeAlias(alias *registry.Service) bool {
	return alias.VisibleTo(sc.Namespace) && sc.isListed(alias)
}

// isListed reports whether a service is a destination of rules or is listed in the Sidecar. Without a Sidecar, all
// services count as listed.
func (sc *Scope) isListed(svc *registry.Service) bool {
	_, target := sc.targets[svc.Hostname]
	return target || sc.egress.Contains(svc.Namespace, svc.Hostname)
}

// isPreferred reports whether a service takes precedence over another one with the same hostname. The order is:
// services in the client's namespace, Kubernetes Services, the first namespace.
func isPreferred(svc, other *registry.Service, namespace string) bool {
	switch {
	case other == nil:
		return true
	case (svc.Namespace == namespace) != (other.Namespace == namespace):
		return svc.Namespace == namespace
	}
	return svc.Kubernetes && !other.Kubernetes
}

func (w *meshIndex) addService(sc *Scope, svc *registry.Service) {
	sc.Services = append(sc.Services, svc)
	sc.services[svc.Hostname] = svc
	for _, alias := range svc.AliasServices {
		if sc.maySeeAlias(alias) {
			sc.aliases[alias.Hostname] = svc
		}
	}
	w.addRule(sc, svc)
}

func (w *meshIndex) addRule(sc *Scope, svc *registry.Service) {
	if d, ok := sc.selectiveRules.find(svc.Hostname); ok {
		sc.rules[svc] = d
		return
	}
	if d := w.destinationRules.lookup(sc.Namespace, svc.Hostname, svc.Namespace); d != nil {
		sc.rules[svc] = d
	}
}

// equal reports whether two scopes result in the same configuration.
func (sc *Scope) equal(o *Scope) bool {
	if sc.mesh != o.mesh || sc.naming != o.naming || sc.Sidecar != o.Sidecar || sc.AllowAny != o.AllowAny || len(sc.rules) != len(o.rules) ||
		!slices.Equal(sc.Services, o.Services) || !slices.Equal(sc.VirtualServices, o.VirtualServices) {
		return false
	}
	for svc, d := range sc.rules {
		if o.rules[svc] != d {
			return false
		}
	}
	return true
}

// Service returns the visible service with this hostname, or nil if there is none. Unlike ServiceByName, it ignores
// aliases.
func (sc *Scope) Service(hostname string) *registry.Service { return sc.services[hostname] }

// MatchesService reports whether a rule's host, which may be a pattern, matches a visible service.
func (sc *Scope) MatchesService(host string) bool {
	if sc.ServiceByName(host) != nil {
		return true
	}
	if !strings.HasPrefix(host, "*") {
		return false
	}
	return slices.ContainsFunc(sc.Services, func(svc *registry.Service) bool { return MatchHost(host, svc.Hostname) })
}
