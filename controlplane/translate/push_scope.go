package translate

import (
	"slices"
	"strconv"
	"strings"

	extensions "istio.io/api/extensions/v1alpha1"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	telemetryv1 "istio.io/api/telemetry/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// AffectedResources returns the resources of the proxy that a change may affect. For each type it returns all resources
// or a list of names. s is the snapshot after the change. The result never omits an affected resource. It may contain
// unaffected resources, which are then built again with the same content.
func AffectedResources(s *snapshot.Snapshot, p *Proxy, change snapshot.Change) xds.PushScope {
	// A proxyless client has few resources, which it requests by name. They may depend on documents anywhere in the
	// mesh.
	if change.Full || p.Proxyless {
		return xds.FullPushScope()
	}
	a := scopeBuilder{proxyView: newView(s, p), affected: xds.PushScope{}, change: change}
	a.addServices(change)
	if change.Revocations {
		a.addAll(xds.RevocationType)
	}
	if p.Type == Router && a.mayHaveSecrets() && s.LimitsGatewayAccounts() && slices.Contains(change.Workloads, p.Namespace) {
		a.addAll(xds.SecretType, xds.ListenerType)
		a.addCredentialClusters()
	}
	for _, versions := range change.Resources {
		for _, r := range versions {
			a.addDocument(r)
		}
	}
	if a.mayHaveMoved(change) {
		a.addAll(xds.ClusterType, xds.EndpointType)
	}
	return a.affected
}

// mayHaveMoved reports whether the proxy's locality or node may differ, because its pod or a node changed.
func (a *scopeBuilder) mayHaveMoved(change snapshot.Change) bool {
	if _, changed := change.Keys[config.Key{Kind: config.Pod, Namespace: a.p.Namespace, Name: a.p.Name}]; !changed && !change.Nodes {
		return false
	}
	return a.localityClass() != ""
}

// addCredentialClusters adds the resources that depend on whether the proxy's account is the account of a gateway.
func (a *scopeBuilder) addCredentialClusters() {
	if a.p.Type == Router && a.mayHaveSecrets() && a.s.LimitsGatewayAccounts() && a.s.HasCredentials() {
		a.addAll(xds.SecretType, xds.ClusterType, xds.EndpointType)
	}
}

// scopeBuilder collects the affected resources.
type scopeBuilder struct {
	proxyView
	affected     xds.PushScope
	change       snapshot.Change
	changedHosts map[string]struct{} // hostnames of services that were added, removed or changed
}

// addAll adds all resources of these types.
func (a *scopeBuilder) addAll(types ...string) { a.affected.AddAll(types...) }

func (a *scopeBuilder) addServices(change snapshot.Change) {
	for _, svc := range change.Services {
		if a.isLocal(svc) {
			a.affected.Add(xds.EndpointType, localCluster)
			a.addAll(xds.ClusterType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
		}
		// This also applies to services that the proxy does not see, because documents may refer to either service of
		// that name.
		a.addRenamed(svc)
		if a.scope.CanSee(svc) {
			if a.hasAutoPassthrough() {
				a.addAll(xds.ClusterType)
			}
			a.addClusters(svc, xds.ClusterType, xds.EndpointType)
			a.addAll(xds.NameTableType)
			a.addServiceRoutes(svc)
			if a.mayHaveSecrets() && a.s.HasCredentials() {
				a.addAll(xds.SecretType)
			}
			if a.listensForServices() {
				a.addServiceListeners(svc)
			}
			if a.isAuthorizer(svc) {
				a.addAll(xds.RouteType)
			}
		}
	}
	for _, svc := range change.Clusters {
		if a.scope.CanSee(svc) {
			a.addClusters(svc, xds.ClusterType, xds.EndpointType)
		}
	}
	for _, svc := range change.Endpoints {
		if a.isLocal(svc) {
			a.affected.Add(xds.EndpointType, localCluster)
		}
		if a.scope.CanSee(svc) && svc.Headless() && a.p.Interception == Redirect {
			a.addAll(xds.ListenerType)
		}
		if a.scope.CanSee(svc) && svc.Resolution == registry.Static {
			a.addClusters(svc, xds.EndpointType)
			if len(svc.Addresses) == 0 || a.p.Interception == None {
				a.addAll(xds.NameTableType)
			}
		}
		if a.isLocal(svc) && slices.ContainsFunc(svc.Ports, func(port registry.Port) bool { return port.TargetPortName != "" }) {
			a.addAll(xds.ClusterType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
		}
	}
}

// addClusters adds the names of all clusters that a service has or had, including the subsets of all DestinationRules.
func (a *scopeBuilder) addClusters(svc *registry.Service, types ...string) {
	subsets := append([]string{"", instanceSubset}, a.s.SubsetNames(svc)...)
	for _, versions := range a.change.Resources {
		for _, r := range versions {
			if rule, ok := r.Spec.(*networking.DestinationRule); ok {
				for _, s := range rule.GetSubsets() {
					subsets = append(subsets, s.GetName())
				}
			}
		}
	}
	slices.Sort(subsets)
	for _, subset := range slices.Compact(subsets) {
		for port := range a.namesakePorts(svc) {
			name := OutboundCluster(svc.Hostname, subset, port)
			for _, t := range types {
				a.affected.Add(t, name)
			}
		}
	}
}

// namesakePorts returns the ports of svc and of all other services with its hostname. After the change, another one of
// these services may take precedence.
func (a *scopeBuilder) namesakePorts(svc *registry.Service) map[uint32]bool {
	ports := map[uint32]bool{}
	for _, s := range a.namesakes(svc) {
		for _, port := range s.Ports {
			ports[port.Number] = true
		}
	}
	return ports
}

// addRenamed adds all resources if documents may refer to svc by its name. After the change, the rules in these
// documents may apply to a different service.
func (a *scopeBuilder) addRenamed(svc *registry.Service) {
	if a.s.AffectsNames(svc) {
		a.addAll(xds.Order...)
	}
}

// isLocal reports whether a service selects the proxy's own workload.
func (a *scopeBuilder) isLocal(svc *registry.Service) bool {
	return svc.Namespace == a.p.Namespace && len(svc.Selector) > 0 && snapshot.Selects(svc.Selector, a.p.Labels)
}

// listensForServices reports whether the proxy's listeners depend on services and their ports. These services may be
// destinations, authorizers or collectors of logs and traces.
func (a *scopeBuilder) listensForServices() bool {
	return a.p.Type == Router || a.p.Interception != None || len(a.p.Upstreams) > 0 || a.s.KeysByProxy ||
		len(a.s.Mesh.GetExtensionProviders()) > 0
}

// isAuthorizer reports whether a service is an external authorizer. The inbound routes of all workloads depend on
// whether it exists.
func (a *scopeBuilder) isAuthorizer(svc *registry.Service) bool {
	return slices.ContainsFunc(a.s.Mesh.GetExtensionProviders(), func(p *meshconfig.MeshConfig_ExtensionProvider) bool {
		service, _ := snapshot.ProviderService(p)
		return snapshot.IsProviderService(svc, service)
	})
}

// addDocument adds the resources that one version of a document affects.
func (a *scopeBuilder) addDocument(r *config.Resource) {
	root := a.s.Mesh.GetRootNamespace()
	near := r.Namespace == a.p.Namespace || r.Namespace == root
	switch spec := r.Spec.(type) {
	case *networking.VirtualService:
		a.addVirtualService(r, spec)
	case *networking.DestinationRule:
		a.addDestinationRule(r, spec)
	case *networking.Gateway:
		a.addCredentialClusters()
		if a.p.Type == Router && snapshot.Selects(spec.GetSelector(), a.p.Labels) {
			a.addAll(xds.SecretType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
			if slices.ContainsFunc(spec.GetServers(), func(s *networking.Server) bool {
				return server{spec: s}.isAutoPassthrough() || s.GetDefaultEndpoint() != ""
			}) {
				a.addAll(xds.ClusterType, xds.EndpointType)
			}
		}
	case *extensions.WasmPlugin:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.addAll(xds.ListenerType, xds.ExtensionType)
		}
	case *telemetryv1.Telemetry:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.addAll(xds.ListenerType)
		}
	case *networking.Sidecar:
		if a.p.Type == Sidecar && near {
			a.addAll(xds.Order...)
		}
	case *security.PeerAuthentication:
		// The endpoints and clusters contain the effect of the document on clients.
		if a.p.Type == Sidecar && near {
			a.addAll(xds.ListenerType)
		}
	case *security.AuthorizationPolicy:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.addAll(xds.ListenerType, xds.RouteType)
		}
	case *config.SecretSpec:
		if a.mayHaveSecrets() && r.Namespace == a.p.Namespace {
			a.addAll(xds.SecretType, xds.ListenerType)
			if a.s.HasCredentials() {
				a.addAll(xds.ClusterType, xds.EndpointType)
			}
		}
		if a.mayHaveSecrets() && near {
			a.addAll(xds.ExtensionType) // the Secret may be the pull secret of a Wasm module
		}
	case *networking.EnvoyFilter:
		if near && snapshot.FilterApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.addEnvoyFilter(spec)
		}
	case *security.RequestAuthentication:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.addAll(xds.ListenerType)
		}
	}
}

func (a *scopeBuilder) addVirtualService(r *config.Resource, spec *networking.VirtualService) {
	// VirtualServices without hosts are delegates. For a delegate, exportTo limits which VirtualServices may refer to
	// it, and not which proxies use it.
	if len(spec.GetHosts()) > 0 && (!a.s.RuleVisibleTo(r, a.p.Namespace) || !a.appliesToProxy(r, spec)) {
		return
	}
	a.addRoutes(r, spec)
	if len(spec.GetTcp())+len(spec.GetTls()) > 0 || slices.ContainsFunc(spec.GetHosts(), func(h string) bool {
		return a.s.HasTCPRules(a.scope.Hostname(h, r.Namespace))
	}) {
		a.addAll(xds.ListenerType)
	}
	// If a Sidecar limits the scope, the destinations of VirtualServices are added to the scope.
	if a.scope.Sidecar != nil {
		a.addAll(xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, xds.NameTableType)
	}
}

// addRoutes adds the virtual hosts for the hosts of a VirtualService.
func (a *scopeBuilder) addRoutes(r *config.Resource, spec *networking.VirtualService) {
	if !a.p.UseVHDS || len(a.p.Upstreams) > 0 || a.hasEgressRoutes() {
		a.addAll(xds.RouteType)
	}
	if !a.p.UseVHDS {
		return
	}
	// A delegate does not specify its hosts. At a gateway, the rules of all VirtualServices for the same host are
	// merged.
	if len(spec.GetHosts()) == 0 || a.p.Type == Router {
		a.addAll(xds.RouteType, xds.VirtualHostType)
		return
	}
	for _, h := range spec.GetHosts() {
		host := a.scope.Hostname(h, r.Namespace)
		a.addVirtualHost(host, 80) // the virtual host that exists if the host is not a service
		a.addVirtualHost(h, 80)    // the virtual host that exists if the host was not a service before the change
		for _, svc := range a.matchingServices(host) {
			for _, port := range svc.Ports {
				a.addVirtualHost(svc.Hostname, port.Number)
				if port.Protocol == registry.Undeclared { // the port may have its own route configuration
					a.affected.Add(xds.RouteType, upstreamRoute(svc, port.Number))
				}
			}
		}
	}
}

// addVirtualHost adds the virtual host for a host and port.
func (a *scopeBuilder) addVirtualHost(host string, port uint32) {
	route := httpProxyRoute
	if a.p.Interception != None {
		route = strconv.FormatUint(uint64(port), 10)
	}
	a.affected.Add(xds.VirtualHostType, route+"/"+plannedHost{host: host, port: port}.name())
}

// matchingServices returns the services that match a rule's host, which may be a pattern.
func (a *scopeBuilder) matchingServices(host string) []*registry.Service {
	var out []*registry.Service
	if svc := a.scope.Service(host); svc != nil {
		out = append(out, svc)
	}
	if strings.HasPrefix(host, "*") {
		for _, svc := range a.scope.Services {
			if svc.Hostname != host && snapshot.MatchHost(host, svc.Hostname) {
				out = append(out, svc)
			}
		}
	}
	return out
}

// appliesToProxy reports whether the rules of a VirtualService apply to this proxy: to sidecars, or to a Gateway that
// the proxy serves.
func (a *scopeBuilder) appliesToProxy(r *config.Resource, spec *networking.VirtualService) bool {
	gateways := spec.GetGateways()
	if a.p.Type == Sidecar {
		return len(gateways) == 0 || slices.Contains(gateways, snapshot.MeshGateway)
	}
	for _, g := range a.s.Gateways(a.p.Labels) {
		for _, name := range gateways {
			if snapshot.GatewayName(name, r.Namespace) == g.FullName() {
				return true
			}
		}
	}
	return false
}

func (a *scopeBuilder) addDestinationRule(r *config.Resource, spec *networking.DestinationRule) {
	host := a.scope.Hostname(spec.GetHost(), r.Namespace)
	if r.Namespace != a.p.Namespace && !a.s.RuleVisibleTo(r, a.p.Namespace) && !a.s.HidesRule(r.Namespace, host) {
		return
	}
	for _, svc := range a.matchingServices(host) {
		a.addClusters(svc, xds.ClusterType, xds.EndpointType)
	}
	// A rule without connection settings may take precedence over a rule with them, or the reverse.
	if snapshot.UsesConnectionSettings(spec) || a.s.HasConnectionSettings() {
		a.addAll(xds.ListenerType)
	}
	if a.hasAutoPassthrough() {
		a.addAll(xds.ClusterType, xds.EndpointType, xds.ListenerType)
	}
	if a.mayHaveSecrets() && (snapshot.UsesCredential(spec) || a.s.HasCredentials()) {
		a.addAll(xds.SecretType)
	}
	// Routes contain the hash policies. After the change, a rule with consistent hashing may take precedence over a
	// rule without it, or the reverse.
	if snapshot.UsesConsistentHash(spec) || a.s.HasConsistentHashing() {
		a.addAll(xds.RouteType, xds.VirtualHostType)
	}
}

// addEnvoyFilter adds the resource types that the patches modify.
func (a *scopeBuilder) addEnvoyFilter(spec *networking.EnvoyFilter) {
	for _, p := range spec.GetConfigPatches() {
		switch p.GetApplyTo() {
		case networking.EnvoyFilter_BOOTSTRAP:
		case networking.EnvoyFilter_CLUSTER:
			a.addAll(xds.ClusterType, xds.EndpointType)
		case networking.EnvoyFilter_EXTENSION_CONFIG:
			a.addAll(xds.ExtensionType)
		case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
			a.addAll(xds.RouteType, xds.VirtualHostType)
		default:
			a.addAll(xds.ListenerType)
		}
	}
}
