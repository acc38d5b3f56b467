// Package snapshot is the mesh at one moment, immutable and indexed: who sees which services, which routing rules,
// policies and gateways apply to whom. A new snapshot is built from the previous one and shares all that did not change.
package snapshot

import (
	"maps"
	"net/netip"
	"sync"

	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
)

// Inputs are what a snapshot is built from.
type Inputs struct {
	// Store holds the resources that are in force.
	Store config.Store
	// Mesh is the mesh's configuration; what it leaves open gets Istio's defaults (see WithDefaults). A changed
	// configuration has to be another pointer. Nil is all defaults.
	Mesh *meshconfig.MeshConfig
	// Domain is the suffix of Kubernetes Services' names; "cluster.local" when empty.
	Domain string
	// Virtual is the network of addresses for services without one, if any (see registry.Options).
	Virtual netip.Prefix
	// Keys are those of token issuers that were fetched. A changed set has to be another pointer.
	Keys *KeySets
	// KeysByProxy lets proxies fetch the keys of token issuers that are services of the mesh.
	KeysByProxy bool
}

// Snapshot is the mesh at one moment. It is immutable and safe for concurrent use.
type Snapshot struct {
	// Mesh is the mesh's configuration with its defaults filled in.
	Mesh *meshconfig.MeshConfig
	// Domain is the suffix of Kubernetes Services' names.
	Domain   string
	Registry *registry.Registry
	// Cache holds what was made of this snapshot and those before it.
	Cache *Cache
	// KeysByProxy: proxies fetch the keys of token issuers that are services of the mesh.
	KeysByProxy bool
	// Own holds what was made of this snapshot alone.
	Own *Cache

	given     *meshconfig.MeshConfig // as it was in the inputs
	resources map[config.Kind][]*config.Resource
	world     *world
	peerAuth  *peerAuth
	authz     *authz
	// requestAuth and keys are which tokens are taken, and the keys of their issuers.
	requestAuth  *requestAuth
	keys         *KeySets
	gateways     []Gateway
	envoyFilters *envoyFilters
	secrets      *secrets
	telemetry    *levels[*telemetry.Telemetry]
	plugins      map[string][]Plugin // by namespace
	instances    map[*registry.Service]*Instances
	selecting    map[string][]*registry.Service // services with a selector, by namespace

	notes   *notes
	checked *check
	memory  sync.Map // what others derived of this snapshot, by their keys
}

// Memo gives what was derived of the snapshot under a key, and has it made if it was not. The key has to hold all that it
// depends on beside the snapshot.
func (s *Snapshot) Memo(key any, derive func() any) any { return memo(&s.memory, key, derive) }

// indexed are the kinds that are read here; the others are the registry's.
var indexed = []config.Kind{
	config.VirtualService, config.DestinationRule, config.Gateway, config.Sidecar,
	config.PeerAuthentication, config.AuthorizationPolicy, config.RequestAuthentication, config.EnvoyFilter,
	config.ProxyConfig, config.Telemetry, config.WasmPlugin, config.Secret,
}

// Build makes the snapshot of what is in the inputs. changed names the resources that differ from what prev was built
// of; only what depends on them is built anew. A nil prev, or a nil changed, builds everything.
func Build(prev *Snapshot, in Inputs, changed []config.Key) *Snapshot {
	b := newBuild(prev, in, changed)
	b.readResources()
	b.buildRegistry()
	b.buildPolicies()
	b.buildInstances()
	b.buildWorld()
	b.next.checked = b.prev.checked.next()
	return b.next
}

// build is one build of a snapshot.
type build struct {
	prev, next *Snapshot
	in         Inputs
	keys       []config.Key
	touched    map[config.Kind]bool
	all        bool
	opts       registry.Options
}

func newBuild(prev *Snapshot, in Inputs, changed []config.Key) *build {
	if in.Domain == "" {
		in.Domain = "cluster.local"
	}
	b := &build{prev: prev, in: in, keys: changed, touched: map[config.Kind]bool{}}
	for _, k := range changed {
		b.touched[k.Kind] = true
	}
	if prev == nil {
		b.prev = &Snapshot{Cache: newCache(), notes: &notes{byProxy: map[any]*proxyNotes{}}}
	}
	b.all = prev == nil || changed == nil || prev.given != in.Mesh || prev.Domain != in.Domain
	if b.all {
		b.keys = nil
	}
	b.next = &Snapshot{Domain: in.Domain, given: in.Mesh, Cache: b.prev.Cache, notes: b.prev.notes, Own: newCache(), Mesh: b.prev.Mesh, keys: in.Keys, KeysByProxy: in.KeysByProxy}
	if b.next.Mesh == nil || b.prev.given != in.Mesh {
		b.next.Mesh = WithDefaults(in.Mesh)
	}
	b.opts = registry.Options{Domain: in.Domain, MeshTrustDomain: b.next.Mesh.GetTrustDomain(), Virtual: in.Virtual}
	return b
}

// changes says whether anything of these kinds may differ.
func (b *build) changes(kinds ...config.Kind) bool {
	for _, k := range kinds {
		if b.touched[k] {
			return true
		}
	}
	return b.all
}

func (b *build) readResources() {
	b.next.resources = make(map[config.Kind][]*config.Resource, len(indexed))
	for _, kind := range indexed {
		if b.changes(kind) {
			b.next.resources[kind] = b.in.Store.List(kind)
		} else {
			b.next.resources[kind] = b.prev.resources[kind]
		}
	}
}

func (b *build) buildRegistry() {
	b.next.Registry = b.prev.Registry
	if b.changes(config.Service, config.ServiceEntry, config.WorkloadEntry) {
		b.next.Registry = registry.Build(b.prev.Registry, b.in.Store, b.opts, b.keys)
	}
}

func (b *build) buildPolicies() {
	root := b.next.Mesh.GetRootNamespace()
	b.next.peerAuth, b.next.authz, b.next.gateways = b.prev.peerAuth, b.prev.authz, b.prev.gateways
	b.next.requestAuth = b.prev.requestAuth
	if b.changes(config.RequestAuthentication) {
		b.next.requestAuth = newRequestAuth(b.next.resources[config.RequestAuthentication], root)
	}
	if b.changes(config.PeerAuthentication) {
		b.next.peerAuth = newPeerAuth(b.next.resources[config.PeerAuthentication], root)
	}
	if b.changes(config.AuthorizationPolicy) {
		b.next.authz = newAuthz(b.next.resources[config.AuthorizationPolicy], root)
	}
	b.next.telemetry = b.prev.telemetry
	b.next.plugins = b.prev.plugins
	if b.changes(config.WasmPlugin) {
		b.next.plugins = newPlugins(b.next.resources[config.WasmPlugin])
	}
	if b.changes(config.Telemetry) {
		b.next.telemetry = newLevels[*telemetry.Telemetry](b.next.resources[config.Telemetry], root)
	}
	if b.changes(config.Gateway) {
		b.next.gateways = newGateways(b.next.resources[config.Gateway])
	}
	b.next.envoyFilters, b.next.secrets = b.prev.envoyFilters, b.prev.secrets
	if b.changes(config.Secret) {
		b.next.secrets = newSecrets(b.next.resources[config.Secret])
	}
	if b.changes(config.EnvoyFilter) {
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
	old := b.prev.world
	services := b.next.Registry.Services
	same := old != nil && b.next.Registry == b.prev.Registry || old != nil && equalPointers(old.services, services)
	if same && !b.changes(config.VirtualService, config.DestinationRule, config.Sidecar) {
		b.next.world, b.next.selecting = old, b.prev.selecting
		return
	}
	if old == nil {
		old = &world{}
	}
	w := &world{
		mesh: b.next.Mesh, resolve: b.next.Registry.ResolveHostname, services: services, byHost: old.byHost,
		virtualServices: old.virtualServices, destinationRules: old.destinationRules, sidecars: old.sidecars,
		cache: b.next.Cache, scopes: map[scopeKey]*Scope{}, before: old.takeScopes(),
	}
	w.had = len(w.before)
	b.next.world, b.next.selecting = w, b.prev.selecting
	if !same {
		w.byHost, b.next.selecting = indexServices(services)
	}
	b.buildRules(w, same)
	w.naming = b.naming(old, w)
}

// buildRules indexes the rules. Short names in them mean other hosts when services come and go.
func (b *build) buildRules(w *world, sameServices bool) {
	mesh := b.next.Mesh
	if !sameServices || b.changes(config.VirtualService) {
		w.virtualServices = newVirtualServices(reusable(b, w.virtualServices), b.next.resources[config.VirtualService],
			w.resolve, mesh.GetDefaultVirtualServiceExportTo(), sameServices)
	}
	if !sameServices || b.changes(config.DestinationRule) {
		w.destinationRules = newDestinationRules(reusable(b, w.destinationRules), b.next.resources[config.DestinationRule],
			w.resolve, mesh.GetRootNamespace(), mesh.GetDefaultDestinationRuleExportTo(), sameServices)
	}
	if b.changes(config.Sidecar) {
		w.sidecars = map[string][]*config.Resource{}
		for _, r := range oldestFirst(b.next.resources[config.Sidecar]) {
			w.sidecars[r.Namespace] = append(w.sidecars[r.Namespace], r)
		}
	}
}

// reusable gives the previous index, unless the settings that it was made with may have changed.
func reusable[T any](b *build, index *T) *T {
	if b.prev.given != b.in.Mesh || b.prev.Domain != b.in.Domain {
		return nil
	}
	return index
}

// takeScopes copies the scopes that were made so far: the next world takes over those that stay equal.
func (w *world) takeScopes() map[scopeKey]*Scope {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make(map[scopeKey]*Scope, len(w.scopes))
	// Scopes that nobody asked for in this world are kept for the next, within reason: their proxies may be idle or gone.
	if len(w.before) <= 2*len(w.scopes)+64 {
		maps.Copy(out, w.before)
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

// Instances are where a service of this snapshot's registry is served.
func (s *Snapshot) Instances(svc *registry.Service) *Instances { return s.instances[svc] }

// LocalServices are the services that select a workload with these labels, by hostname.
func (s *Snapshot) LocalServices(namespace string, labels map[string]string) []*registry.Service {
	var out []*registry.Service
	for _, svc := range s.selecting[namespace] {
		if Selects(svc.Selector, labels) {
			out = append(out, svc)
		}
	}
	return out
}
