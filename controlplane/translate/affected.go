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

// Affected says what may differ for the proxy after the change: of each type all, or some names. s is the snapshot after
// the change. It never misses a resource; that it names one for nothing costs the work of making what turns out to be the
// same.
func Affected(s *snapshot.Snapshot, p *Proxy, change snapshot.Change) xds.Touches {
	// An application without a proxy has little, all by name, and what that is made of may be anywhere.
	if change.Full || p.Proxyless {
		return xds.Everything()
	}
	a := affected{view: newView(s, p), touches: xds.Touches{}, change: change}
	a.services(change)
	for _, versions := range change.Resources {
		for _, r := range versions {
			a.resource(r)
		}
	}
	return a.touches
}

// affected collects what is touched.
type affected struct {
	view
	touches xds.Touches
	change  snapshot.Change
	changed map[string]struct{} // the hostnames of services that came, went or changed
}

// all adds all resources of the types.
func (a *affected) all(types ...string) { a.touches.AddAll(types...) }

func (a *affected) services(change snapshot.Change) {
	for _, svc := range change.Services {
		if a.local(svc) {
			a.touches.Add(xds.EndpointType, localCluster)
			a.all(xds.ClusterType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
		}
		a.namesake(svc) // whether the proxy sees it or not: documents that it has a part in mean the one or the other
		if a.scope.MaySee(svc) {
			if a.passesOn() {
				a.all(xds.ClusterType)
			}
			a.clusters(svc, xds.ClusterType, xds.EndpointType)
			a.all(xds.NameTableType)
			a.routesOf(svc)
			if a.mayHaveSecrets() && a.s.AnyCredentialed() {
				a.all(xds.SecretType)
			}
			if a.listensForServices() {
				a.listenersOf(svc)
			}
			if a.authorizes(svc) {
				a.all(xds.RouteType)
			}
		}
	}
	for _, svc := range change.Clusters {
		if a.scope.MaySee(svc) {
			a.clusters(svc, xds.ClusterType, xds.EndpointType)
		}
	}
	for _, svc := range change.Endpoints {
		if a.local(svc) {
			a.touches.Add(xds.EndpointType, localCluster)
		}
		if a.scope.MaySee(svc) && svc.Headless() && a.p.Interception == Redirect {
			a.all(xds.ListenerType)
		}
		if a.scope.MaySee(svc) && svc.Resolution == registry.Static {
			a.clusters(svc, xds.EndpointType)
			if len(svc.Addresses) == 0 || a.p.Interception == None {
				a.all(xds.NameTableType)
			}
		}
		if a.local(svc) && slices.ContainsFunc(svc.Ports, func(port registry.Port) bool { return port.TargetPortName != "" }) {
			a.all(xds.ClusterType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
		}
	}
}

// clusters adds the clusters that a service has, had, or may have had: whatever subsets any rule speaks of.
func (a *affected) clusters(svc *registry.Service, types ...string) {
	subsets := append([]string{"", theInstance}, a.s.SubsetNames(svc)...)
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
		for port := range a.ports(svc) {
			name := OutboundCluster(svc.Hostname, subset, port)
			for _, t := range types {
				a.touches.Add(t, name)
			}
		}
	}
}

// ports are those of the service, and of others with its hostname, which it may have stood behind or put behind it.
func (a *affected) ports(svc *registry.Service) map[uint32]bool {
	ports := map[uint32]bool{}
	for _, s := range a.namesakes(svc) {
		for _, port := range s.Ports {
			ports[port.Number] = true
		}
	}
	return ports
}

// namesake adds everything where a service that came or went has a name by which documents may mean another one: which of
// the two their rules are for is another question from now on.
func (a *affected) namesake(svc *registry.Service) {
	if a.s.Renames(svc) {
		a.all(xds.Order...)
	}
}

// local says whether a service selects the proxy's own workload.
func (a *affected) local(svc *registry.Service) bool {
	return svc.Namespace == a.p.Namespace && len(svc.Selector) > 0 && snapshot.Selects(svc.Selector, a.p.Labels)
}

// listensForServices says whether listeners depend on which services there are, and which ports they have: what they are
// for, and what they ask or tell.
func (a *affected) listensForServices() bool {
	return a.p.Type == Router || a.p.Interception != None || len(a.p.Upstreams) > 0 || a.s.KeysByProxy ||
		len(a.s.Mesh.GetExtensionProviders()) > 0
}

// authorizes says whether a service is, or was, one that is asked who may call: the routes to the workload itself say what of.
func (a *affected) authorizes(svc *registry.Service) bool {
	return slices.ContainsFunc(a.s.Mesh.GetExtensionProviders(), func(p *meshconfig.MeshConfig_ExtensionProvider) bool {
		service, _ := snapshot.ProviderService(p)
		return snapshot.IsProviderService(svc, service)
	})
}

// resource adds what one version of a rule or policy has a part in.
func (a *affected) resource(r *config.Resource) {
	root := a.s.Mesh.GetRootNamespace()
	near := r.Namespace == a.p.Namespace || r.Namespace == root
	switch spec := r.Spec.(type) {
	case *networking.VirtualService:
		a.virtualService(r, spec)
	case *networking.DestinationRule:
		a.destinationRule(r, spec)
	case *networking.Gateway:
		if a.p.Type == Router && snapshot.Selects(spec.GetSelector(), a.p.Labels) {
			a.all(xds.SecretType, xds.ListenerType, xds.RouteType, xds.VirtualHostType)
			if slices.ContainsFunc(spec.GetServers(), func(s *networking.Server) bool {
				return server{spec: s}.autoPassthrough() || s.GetDefaultEndpoint() != ""
			}) {
				a.all(xds.ClusterType, xds.EndpointType)
			}
		}
	case *extensions.WasmPlugin:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.all(xds.ListenerType, xds.ExtensionType)
		}
	case *telemetryv1.Telemetry:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.all(xds.ListenerType)
		}
	case *networking.Sidecar:
		if a.p.Type == Sidecar && near {
			a.all(xds.Order...)
		}
	case *security.PeerAuthentication:
		// What it means for callers shows in the endpoints and their clusters.
		if a.p.Type == Sidecar && near {
			a.all(xds.ListenerType)
		}
	case *security.AuthorizationPolicy:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.all(xds.ListenerType, xds.RouteType)
		}
	case *config.SecretSpec:
		if a.mayHaveSecrets() && r.Namespace == a.p.Namespace {
			a.all(xds.SecretType, xds.ListenerType)
			if a.s.AnyCredentialed() {
				a.all(xds.ClusterType, xds.EndpointType)
			}
		}
		if a.mayHaveSecrets() && near {
			a.all(xds.ExtensionType) // modules are pulled with them
		}
	case *networking.EnvoyFilter:
		if near && snapshot.FilterApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.envoyFilter(spec)
		}
	case *security.RequestAuthentication:
		if near && snapshot.PolicyApplies(spec, r.Namespace == a.p.Namespace, a.p.Labels) {
			a.all(xds.ListenerType)
		}
	}
}

func (a *affected) virtualService(r *config.Resource, spec *networking.VirtualService) {
	// Rules without hosts are a part of others, which say whose they are: their own exportTo is for those that name them.
	if len(spec.GetHosts()) > 0 && (!a.s.RuleVisibleTo(r, a.p.Namespace) || !a.bound(r, spec)) {
		return
	}
	a.routes(r, spec)
	if len(spec.GetTcp())+len(spec.GetTls()) > 0 || slices.ContainsFunc(spec.GetHosts(), func(h string) bool {
		return a.s.AnyForBytes(a.scope.Hostname(h, r.Namespace))
	}) {
		a.all(xds.ListenerType)
	}
	// Where a Sidecar narrows the scope, rules widen it by what they route to.
	if a.scope.Sidecar != nil {
		a.all(xds.ClusterType, xds.EndpointType, xds.ListenerType, xds.RouteType, xds.VirtualHostType, xds.NameTableType)
	}
}

// routes adds the virtual hosts of the hosts that rules are for.
func (a *affected) routes(r *config.Resource, spec *networking.VirtualService) {
	if !a.p.HostsApart || len(a.p.Upstreams) > 0 || a.hasEgressRoutes() {
		a.all(xds.RouteType)
	}
	if !a.p.HostsApart {
		return
	}
	// Which hosts a part of others is for is not in it; at a gateway rules meet those of other rules for the same host.
	if len(spec.GetHosts()) == 0 || a.p.Type == Router {
		a.all(xds.RouteType, xds.VirtualHostType)
		return
	}
	for _, h := range spec.GetHosts() {
		host := a.scope.Hostname(h, r.Namespace)
		a.hostApart(host, 80) // of a host that is no service
		a.hostApart(h, 80)    // nor was one, by the name that it has now, when the rule was for it
		for _, svc := range a.matching(host) {
			for _, port := range svc.Ports {
				a.hostApart(svc.Hostname, port.Number)
				if port.Protocol == registry.Undeclared { // it may have routes of its own
					a.touches.Add(xds.RouteType, upstreamRoute(svc, port.Number))
				}
			}
		}
	}
}

// hostApart adds the virtual host of a host's port.
func (a *affected) hostApart(host string, port uint32) {
	route := httpProxyRoute
	if a.p.Interception != None {
		route = strconv.FormatUint(uint64(port), 10)
	}
	a.touches.Add(xds.VirtualHostType, route+"/"+planned{host: host, port: port}.name())
}

// matching are the services that a rule's host, which may be a pattern, stands for.
func (a *affected) matching(host string) []*registry.Service {
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

// bound says whether the rules are for this proxy: for sidecars, or for a Gateway that it serves.
func (a *affected) bound(r *config.Resource, spec *networking.VirtualService) bool {
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

func (a *affected) destinationRule(r *config.Resource, spec *networking.DestinationRule) {
	host := a.scope.Hostname(spec.GetHost(), r.Namespace)
	if r.Namespace != a.p.Namespace && !a.s.RuleVisibleTo(r, a.p.Namespace) && !a.s.HidesRule(r.Namespace, host) {
		return
	}
	for _, svc := range a.matching(host) {
		a.clusters(svc, xds.ClusterType, xds.EndpointType)
	}
	// A rule that says nothing of connections may hide one that does, or have hidden it.
	if snapshot.Connects(spec) || a.s.AnyConnecting() {
		a.all(xds.ListenerType)
	}
	if a.passesOn() {
		a.all(xds.ClusterType, xds.EndpointType, xds.ListenerType)
	}
	if a.mayHaveSecrets() && (snapshot.Credentialed(spec) || a.s.AnyCredentialed()) {
		a.all(xds.SecretType)
	}
	// What consistent hashing goes by is in the routes. A rule without it may hide one with it, or have hidden it.
	if snapshot.Hashes(spec) || a.s.AnyHashing() {
		a.all(xds.RouteType, xds.VirtualHostType)
	}
}

// envoyFilter adds the types that patches are for.
func (a *affected) envoyFilter(spec *networking.EnvoyFilter) {
	for _, p := range spec.GetConfigPatches() {
		switch p.GetApplyTo() {
		case networking.EnvoyFilter_BOOTSTRAP:
		case networking.EnvoyFilter_CLUSTER:
			a.all(xds.ClusterType, xds.EndpointType)
		case networking.EnvoyFilter_EXTENSION_CONFIG:
			a.all(xds.ExtensionType)
		case networking.EnvoyFilter_ROUTE_CONFIGURATION, networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE:
			a.all(xds.RouteType, xds.VirtualHostType)
		default:
			a.all(xds.ListenerType)
		}
	}
}
