package translate

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// vhds returns the configuration that makes Envoy request the virtual hosts of a route configuration as separate
// resources.
func vhds() *routev3.Vhds { return &routev3.Vhds{ConfigSource: ads()} }

// VirtualHosts returns all VHDS resources of the route configurations in routes. If routes is empty, it returns the
// resources of all route configurations to which the proxy's listeners refer.
func VirtualHosts(s *snapshot.Snapshot, p *Proxy, routes []string) ([]*xds.Resource, error) {
	if !p.UseVHDS {
		return nil, nil
	}
	v := newView(s, p)
	out, err := v.allHosts(routes)
	v.reportSkippedPatches(xds.VirtualHostType, matchRoutes(routes), out)
	return out, err
}

func (v proxyView) allHosts(routes []string) ([]*xds.Resource, error) {
	if len(routes) == 0 {
		routes = v.p.interceptionMode().routeNames(v)
	}
	if len(routes) == 1 {
		return v.virtualHostResources(routes[0], nil)
	}
	var out []*xds.Resource
	for _, route := range routes {
		hosts, err := v.virtualHostResources(route, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, hosts...)
	}
	return out, nil
}

// NamedVirtualHosts returns the VHDS resources whose names are in names. It skips unknown names.
func NamedVirtualHosts(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	if !p.UseVHDS {
		return nil, nil
	}
	v := newView(s, p)
	var out []*xds.Resource
	var order []string
	byRoute := map[string][]string{}
	for _, name := range names {
		route, host := xds.SplitVirtualHostName(name)
		if route == "" {
			continue
		}
		if byRoute[route] == nil {
			order = append(order, route)
		}
		byRoute[route] = append(byRoute[route], host)
	}
	for _, route := range order {
		hosts, err := v.virtualHostResources(route, byRoute[route])
		if err != nil {
			return nil, err
		}
		out = append(out, hosts...)
	}
	v.reportSkippedPatches(xds.VirtualHostType, matchNames(names), out)
	return out, nil
}

// virtualHostResources returns those virtual hosts of a route configuration whose names are in names, as resources. If
// names is nil, it returns all.
func (v proxyView) virtualHostResources(route string, names []string) ([]*xds.Resource, error) {
	plan := v.p.interceptionMode().hostPlan(v, route)
	if plan == nil {
		return v.gatewayHostResources(route, names)
	}
	if names == nil {
		return v.allVirtualHostResources(route, plan)
	}
	var hosts []plannedHost
	for _, name := range names {
		if i, ok := plan.byName[name]; ok {
			hosts = append(hosts, plan.hosts[i])
		}
	}
	return v.plannedHostResources(route, hosts)
}

// allHostsKey contains the values on which the list of all virtual hosts of a route configuration depends, except the
// scope. The keys of individual virtual hosts have more fields, but scope and plan determine their values.
type allHostsKey struct {
	plan      *hostPlan
	route     string
	mesh      *meshconfig.MeshConfig
	namespace string
	labels    string
	patches   string
	captured  bool
	onDemand  bool
}

// allVirtualHostResources returns all virtual hosts of a plan. The list is built once for all proxies with the same
// allHostsKey.
func (v proxyView) allVirtualHostResources(route string, plan *hostPlan) ([]*xds.Resource, error) {
	key := allHostsKey{
		plan: plan, route: route, mesh: v.s.Mesh, namespace: v.p.Namespace, labels: v.sourceLabels(), patches: v.patchesOfRoutes(route),
		captured: v.p.isCaptured(), onDemand: v.p.OnDemand,
	}
	return v.scopeLists().get(key, func() ([]*xds.Resource, error) {
		hosts, err := v.plannedHostResources(route, plan.hosts)
		if err != nil || !v.p.OnDemand {
			return hosts, err
		}
		others, err := v.unknownHostsResource(route)
		return append(hosts, others...), err
	})
}

func (v proxyView) plannedHostResources(route string, hosts []plannedHost) ([]*xds.Resource, error) {
	out := make([]*xds.Resource, 0, len(hosts))
	for _, h := range hosts {
		r, err := v.virtualHostResource(route, h)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// gatewayHostResources returns those virtual hosts of a router's route configuration whose names are in names. If names
// is nil, it returns all.
func (v proxyView) gatewayHostResources(route string, names []string) ([]*xds.Resource, error) {
	servers := v.serversOf(route)
	if v.p.Type != Router || len(servers) == 0 {
		return nil, nil
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	var out []*xds.Resource
	for _, host := range sanitizeRoutes(v.gatewayRoutes(route, servers)).GetVirtualHosts() {
		if names != nil && !wanted[host.GetName()] {
			continue
		}
		if host = v.patchHost(route, host); host == nil {
			v.patches.TakeSkipped()
			continue
		}
		r, err := v.newVirtualHostResource(route, host)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// newVirtualHostResource returns the resource of a virtual host. The virtual host's own name is also the resource
// name, because Envoy looks up virtual hosts by their own name to remove them.
func (v proxyView) newVirtualHostResource(route string, host *routev3.VirtualHost) (*xds.Resource, error) {
	host.Name = route + "/" + host.Name
	r, err := xds.NewResource(host.Name, host)
	return attachSkippedPatches(v.patches.TakeSkipped(), r, err)
}

// plainHostKey contains all values on which the virtual host of a service without rules depends.
type plainHostKey struct {
	route    string
	svc      *registry.Service
	port     uint32
	domains  string
	rule     *snapshot.DestinationRule
	mesh     *meshconfig.MeshConfig
	patches  string
	captured bool
	onDemand bool
}

// ruledHostKey contains all values on which a virtual host with rules depends. If possible, it contains only the rules'
// destinations instead of the whole scope.
type ruledHostKey struct {
	rule    *snapshot.VirtualService
	uses    snapshot.RouteHosts
	svc     *registry.Service
	own     *snapshot.DestinationRule // the DestinationRule of the service itself
	port    uint32
	domains string
	mesh    *meshconfig.MeshConfig

	scope     *snapshot.Scope // nil unless the virtual host depends on the whole scope
	namespace string          // the caller's namespace; empty unless the rules have conditions on it
	route     string
	name      string
	labels    string
	// patches is the key of the EnvoyFilter patches.
	patches  string
	captured bool
	onDemand bool
}

func (v proxyView) ruledHostKey(route string, h plannedHost) ruledHostKey {
	key := ruledHostKey{
		rule: h.rule, svc: h.svc, own: v.scope.DestinationRule(h.svc), port: h.port, domains: strings.Join(h.domains, " "), mesh: v.s.Mesh,
		route: route, name: h.name(), labels: v.sourceLabels(), patches: v.patchesOfRoutes(route), captured: v.p.isCaptured(),
		onDemand: v.p.OnDemand,
	}
	if h.rule.MatchesSourceNamespace() {
		key.namespace = v.p.Namespace
	}
	var ok bool
	if key.uses, ok = v.scope.RouteHosts(h.rule); !ok {
		key.scope = v.scope
	}
	return key
}

// virtualHostResource returns a planned virtual host, which is built once for all proxies with the same key. It returns
// nil if its rule has no routes for this caller.
func (v proxyView) virtualHostResource(route string, h plannedHost) (*xds.Resource, error) {
	cache := v.s.Cache
	var key any = plainHostKey{
		route: route, svc: h.svc, port: h.port, domains: strings.Join(h.domains, " "),
		rule: v.scope.DestinationRule(h.svc), mesh: v.s.Mesh, patches: v.patchesOfRoutes(route), captured: v.p.isCaptured(),
		onDemand: v.p.OnDemand,
	}
	if h.svc == nil || h.rule != nil && len(h.rule.Spec.GetHttp()) > 0 {
		ruled := v.ruledHostKey(route, h)
		if ruled.scope != nil {
			cache = ruled.scope.Cache()
		}
		key = ruled
	}
	return cache.Get(key, func() (*xds.Resource, error) {
		host := v.buildVirtualHost(h)
		if host == nil {
			return nil, nil
		}
		host = sanitizeRoutes(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{host}}).VirtualHosts[0]
		if host = v.patchHost(route, host); host == nil {
			v.patches.TakeSkipped()
			return nil, nil
		}
		return v.newVirtualHostResource(route, host)
	})
}

// setVirtualHosts adds the virtual hosts to a route configuration, or configures VHDS. If the proxy requests virtual
// hosts on demand, the route configuration has no catch-all virtual host. Otherwise every request would match it, and
// Envoy would never request another virtual host.
func (v proxyView) setVirtualHosts(routes *routev3.RouteConfiguration, plan func() *hostPlan) *routev3.RouteConfiguration {
	if v.p.OnDemand {
		routes.Vhds = vhds()
		return routes
	}
	if v.p.UseVHDS {
		routes.Vhds, routes.VirtualHosts = vhds(), []*routev3.VirtualHost{v.catchAllHost()}
		return routes
	}
	routes.VirtualHosts = v.buildVirtualHosts(plan())
	return routes
}
