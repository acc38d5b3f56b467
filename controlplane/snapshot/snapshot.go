// Package snapshot contains an immutable, indexed state of the mesh: which services are visible to a proxy, and which
// routing rules, policies and gateways apply to it. Build creates a snapshot from the previous one; both share all
// unchanged parts.
package snapshot

import (
	"maps"
	"net/netip"
	"slices"
	"sync"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Inputs contains the inputs of Build.
type Inputs struct {
	// Store contains the valid documents.
	Store config.Store
	// Mesh is the mesh configuration; nil selects Istio's defaults. Unset fields have Istio's defaults too (see
	// WithDefaults). To change the configuration, set a different pointer, because Build compares pointers.
	Mesh *meshconfig.MeshConfig
	// Domain is the suffix of Kubernetes Services' names; default "cluster.local".
	Domain string
	// Virtual is the network from which services without an address receive a virtual IP (see registry.Options).
	Virtual netip.Prefix
	// Keys are the fetched keys of token issuers. To change the keys, set a different pointer.
	Keys *KeySets
	// KeysByProxy: if a token issuer is a service of the mesh, proxies fetch its keys.
	KeysByProxy bool
	// GatewayAccounts limits which accounts may use the Secrets of Gateways. If it is nil, all accounts in the Secret's
	// namespace may use them.
	GatewayAccounts *GatewayAccounts
	// Endpoints limits the endpoints that documents may contain. To change the policy, set a different pointer.
	Endpoints *registry.EndpointPolicy
	// StartsProxies: the process that builds the snapshot also starts the proxies, and applies the settings of
	// ProxyConfigs to them.
	StartsProxies bool
}

// Snapshot is the state of the mesh at one point in time. It is immutable and safe for concurrent use.
type Snapshot struct {
	// Mesh is the mesh configuration with defaults.
	Mesh *meshconfig.MeshConfig
	// Domain is the suffix of Kubernetes Services' names.
	Domain   string
	Registry *registry.Registry
	// Cache contains resources that were built from this snapshot and earlier ones.
	Cache *Cache
	// KeysByProxy is Inputs.KeysByProxy.
	KeysByProxy bool
	// OwnCache contains resources that were built only from this snapshot.
	OwnCache *Cache

	startsProxies bool

	given     *meshconfig.MeshConfig // Inputs.Mesh, without defaults
	resources map[config.Kind][]*config.Resource
	index     *meshIndex
	peerAuth  *peerAuth
	authz     *authz
	// requestAuth contains the rules for accepted tokens. keys contains the public keys of the tokens' issuers.
	requestAuth  *requestAuth
	keys         *KeySets
	gateways     []Gateway
	envoyFilters *envoyFilters
	secrets      *secrets
	// gatewayAccounts is Inputs.GatewayAccounts.
	gatewayAccounts *GatewayAccounts
	telemetry       *levels[*telemetry.Telemetry]
	plugins         map[string][]Plugin // by namespace
	instances       map[*registry.Service]*Instances
	selecting       map[string][]*registry.Service // services with a selector, by namespace

	notes *notes
	memos sync.Map // derived values by key
}

// Memo returns the cached value of a key. At the first call it computes the value with derive. The key must contain
// everything on which the value depends, except the snapshot.
func (s *Snapshot) Memo(key any, derive func() any) any { return loadMemo(&s.memos, key, derive) }

// indexed lists the kinds that this package indexes. Package registry reads the other kinds.
var indexed = []config.Kind{
	config.VirtualService, config.DestinationRule, config.Gateway, config.Sidecar,
	config.PeerAuthentication, config.AuthorizationPolicy, config.RequestAuthentication, config.EnvoyFilter,
	config.ProxyConfig, config.Telemetry, config.WasmPlugin, config.Secret,
}

// Build returns the snapshot of the inputs. changed contains the keys of the documents that may differ from the
// documents of prev. Build only replaces the parts that depend on these documents. If prev or changed is nil, it builds
// everything.
func Build(prev *Snapshot, in Inputs, changed []config.Key) *Snapshot {
	b := newBuild(prev, in, changed)
	b.readResources()
	b.buildRegistry()
	b.buildPolicies()
	b.buildInstances()
	b.buildWorld()
	return b.next
}

// build is the state of one Build call.
type build struct {
	prev, next   *Snapshot
	in           Inputs
	keys         []config.Key
	changedKinds map[config.Kind]bool
	all          bool
	opts         registry.Options
}

func newBuild(prev *Snapshot, in Inputs, changed []config.Key) *build {
	if in.Domain == "" {
		in.Domain = "cluster.local"
	}
	b := &build{prev: prev, in: in, keys: changed, changedKinds: map[config.Kind]bool{}}
	for _, k := range changed {
		b.changedKinds[k.Kind] = true
	}
	if prev == nil {
		b.prev = &Snapshot{Cache: newCache(), notes: &notes{byProxy: map[any]*proxyNotes{}}}
	}
	b.all = prev == nil || changed == nil || prev.given != in.Mesh || prev.Domain != in.Domain
	if b.all {
		b.keys = nil
	}
	b.next = &Snapshot{Domain: in.Domain, given: in.Mesh, Cache: b.prev.Cache, notes: b.prev.notes, OwnCache: newCache(), Mesh: b.prev.Mesh, keys: in.Keys, KeysByProxy: in.KeysByProxy, gatewayAccounts: in.GatewayAccounts, startsProxies: in.StartsProxies}
	if b.next.Mesh == nil || b.prev.given != in.Mesh {
		b.next.Mesh = WithDefaults(in.Mesh)
	}
	proxies := b.next.Mesh.GetDefaultConfig()
	b.opts = registry.Options{
		Domain: in.Domain, MeshTrustDomain: b.next.Mesh.GetTrustDomain(), Virtual: in.Virtual,
		Endpoints: in.Endpoints, AdminPort: uint32(proxies.GetProxyAdminPort()), StatusPort: uint32(proxies.GetStatusPort()),
	}
	return b
}

// mayDiffer reports whether documents of these kinds may have changed since the previous snapshot.
func (b *build) mayDiffer(kinds ...config.Kind) bool {
	for _, k := range kinds {
		if b.changedKinds[k] {
			return true
		}
	}
	return b.all
}

func (b *build) readResources() {
	b.next.resources = make(map[config.Kind][]*config.Resource, len(indexed))
	for _, kind := range indexed {
		if b.mayDiffer(kind) {
			b.next.resources[kind] = b.in.Store.List(kind)
		} else {
			b.next.resources[kind] = b.prev.resources[kind]
		}
	}
}

func (b *build) buildRegistry() {
	b.next.Registry = b.prev.Registry
	if b.mayDiffer(config.Service, config.ServiceEntry, config.WorkloadEntry, config.Pod, config.EndpointSlice, config.Node, config.Namespace) {
		b.next.Registry = registry.Build(b.prev.Registry, b.in.Store, b.opts, b.keys)
	}
}

func (b *build) buildPolicies() {
	root := b.next.Mesh.GetRootNamespace()
	b.next.peerAuth, b.next.authz, b.next.gateways = b.prev.peerAuth, b.prev.authz, b.prev.gateways
	b.next.requestAuth = b.prev.requestAuth
	if b.mayDiffer(config.RequestAuthentication) {
		b.next.requestAuth = newRequestAuth(b.next.resources[config.RequestAuthentication], root)
	}
	if b.mayDiffer(config.PeerAuthentication) {
		b.next.peerAuth = newPeerAuth(b.next.resources[config.PeerAuthentication], root)
	}
	if b.mayDiffer(config.AuthorizationPolicy) {
		b.next.authz = newAuthz(b.next.resources[config.AuthorizationPolicy], root)
	}
	b.next.telemetry = b.prev.telemetry
	b.next.plugins = b.prev.plugins
	if b.mayDiffer(config.WasmPlugin) {
		b.next.plugins = newPlugins(b.next.resources[config.WasmPlugin])
	}
	if b.mayDiffer(config.Telemetry) {
		b.next.telemetry = newLevels[*telemetry.Telemetry](b.next.resources[config.Telemetry], root)
	}
	if b.mayDiffer(config.Gateway) {
		b.next.gateways = newGateways(b.next.resources[config.Gateway])
	}
	b.next.envoyFilters, b.next.secrets = b.prev.envoyFilters, b.prev.secrets
	if b.mayDiffer(config.Secret) {
		b.next.secrets = newSecrets(b.next.resources[config.Secret])
	}
	if b.mayDiffer(config.EnvoyFilter) {
		b.next.envoyFilters = newEnvoyFilters(b.prev.envoyFilters, b.next.resources[config.EnvoyFilter], root)
	}
}

func (b *build) buildInstances() {
	reg := b.next.Registry
	if reg == b.prev.Registry && b.next.peerAuth == b.prev.peerAuth {
		b.next.instances = b.prev.instances
		return
	}
	builder := instancesBuilder{peerAuth: b.next.peerAuth, trustDomain: b.next.Mesh.GetTrustDomain()}
	b.next.instances = make(map[*registry.Service]*Instances, len(reg.Services))
	for _, svc := range reg.Services {
		old, eps, datagrams := b.prev.instances[svc], reg.Endpoints(svc), reg.Datagrams(svc)
		if b.next.peerAuth == b.prev.peerAuth && old.sameSource(eps, datagrams) {
			b.next.instances[svc] = old
			continue
		}
		b.next.instances[svc] = builder.build(svc, eps, datagrams, old)
	}
}

func (b *build) buildWorld() {
	old := b.prev.index
	services := b.next.Registry.Services
	same := old != nil && b.next.Registry == b.prev.Registry || old != nil && slices.Equal(old.services, services)
	if same && !b.mayDiffer(config.VirtualService, config.DestinationRule, config.Sidecar) {
		b.next.index, b.next.selecting = old, b.prev.selecting
		return
	}
	if old == nil {
		old = &meshIndex{}
	}
	w := &meshIndex{
		mesh: b.next.Mesh, resolve: b.next.Registry.ResolveHostname, services: services, byHost: old.byHost,
		virtualServices: old.virtualServices, destinationRules: old.destinationRules, sidecars: old.sidecars,
		cache: b.next.Cache, scopes: map[scopeKey]*Scope{}, previousScopes: old.takeScopes(),
	}
	w.previousScopeCount = len(w.previousScopes)
	b.next.index, b.next.selecting = w, b.prev.selecting
	if !same {
		w.byHost, b.next.selecting = indexServices(services)
	}
	b.buildRules(w, same)
	w.naming = b.reuseNameVersion(old, w)
}

// buildRules indexes the VirtualServices, DestinationRules and Sidecars. The index also depends on the set of services,
// because short names in rules resolve to services.
func (b *build) buildRules(w *meshIndex, sameServices bool) {
	mesh := b.next.Mesh
	if !sameServices || b.mayDiffer(config.VirtualService) {
		w.virtualServices = newVirtualServices(reusable(b, w.virtualServices), b.next.resources[config.VirtualService],
			w.resolve, mesh.GetDefaultVirtualServiceExportTo(), sameServices)
	}
	if !sameServices || b.mayDiffer(config.DestinationRule) {
		w.destinationRules = newDestinationRules(reusable(b, w.destinationRules), b.next.resources[config.DestinationRule],
			w.resolve, mesh.GetRootNamespace(), mesh.GetDefaultDestinationRuleExportTo(), sameServices)
	}
	if b.mayDiffer(config.Sidecar) {
		w.sidecars = map[string][]*config.Resource{}
		for _, r := range config.SortByAge(b.next.resources[config.Sidecar]) {
			w.sidecars[r.Namespace] = append(w.sidecars[r.Namespace], r)
		}
	}
}

// reusable returns the previous index. It returns nil if the mesh configuration or the domain, on which the index
// depends, may have changed.
func reusable[T any](b *build, index *T) *T {
	if b.prev.given != b.in.Mesh || b.prev.Domain != b.in.Domain {
		return nil
	}
	return index
}

// takeScopes returns a copy of the scopes. The next index reuses the scopes in the copy that are equal to its own.
func (w *meshIndex) takeScopes() map[scopeKey]*Scope {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[scopeKey]*Scope, len(w.scopes))
	// Retain a limited number of scopes that this index did not use, because their proxies may be idle.
	if len(w.previousScopes) <= 2*len(w.scopes)+64 {
		maps.Copy(out, w.previousScopes)
	}
	maps.Copy(out, w.scopes)
	return out
}

func indexServices(services []*registry.Service) (byHost, selecting map[string][]*registry.Service) {
	byHost, selecting = map[string][]*registry.Service{}, map[string][]*registry.Service{}
	for _, svc := range services {
		byHost[svc.Hostname] = append(byHost[svc.Hostname], svc)
		if len(svc.Selector) > 0 {
			selecting[svc.Namespace] = append(selecting[svc.Namespace], svc)
		}
	}
	return byHost, selecting
}

// Instances returns the instances of a service of this snapshot's registry.
func (s *Snapshot) Instances(svc *registry.Service) *Instances { return s.instances[svc] }

// LocalServices returns the services that select a workload, sorted by hostname.
func (s *Snapshot) LocalServices(namespace string, labels map[string]string) []*registry.Service {
	var out []*registry.Service
	for _, svc := range s.selecting[namespace] {
		if Selects(svc.Selector, labels) {
			out = append(out, svc)
		}
	}
	return out
}
