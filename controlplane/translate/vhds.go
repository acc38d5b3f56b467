package translate

import (
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// vhds says that the virtual hosts of a route configuration are resources of their own, named after both.
func vhds() *routev3.Vhds { return &routev3.Vhds{ConfigSource: ads()} }

// VirtualHosts are all virtual hosts that go by themselves, of the named route configurations. No names at all: of all
// that the proxy's listeners refer to.
func VirtualHosts(s *snapshot.Snapshot, p *Proxy, routes []string) ([]*xds.Resource, error) {
	if !p.HostsApart {
		return nil, nil
	}
	v := newView(s, p)
	out, err := v.allHosts(routes)
	v.noted(xds.VirtualHostType, ofRoutes(routes), out)
	return out, err
}

func (v view) allHosts(routes []string) ([]*xds.Resource, error) {
	if len(routes) == 0 {
		routes = v.p.capture().routeNames(v)
	}
	if len(routes) == 1 {
		return v.hostsApart(routes[0], nil)
	}
	var out []*xds.Resource
	for _, route := range routes {
		hosts, err := v.hostsApart(route, nil)
		if err != nil {
			return nil, err
		}
		out = append(out, hosts...)
	}
	return out, nil
}

// NamedVirtualHosts are those of the virtual hosts that go by themselves which are named; names that lead nowhere are left
// out.
func NamedVirtualHosts(s *snapshot.Snapshot, p *Proxy, names []string) ([]*xds.Resource, error) {
	if !p.HostsApart {
		return nil, nil
	}
	v := newView(s, p)
	var out []*xds.Resource
	var order []string
	byRoute := map[string][]string{}
	for _, name := range names {
		route, host := xds.CutHost(name)
		if route == "" {
			continue
		}
		if byRoute[route] == nil {
			order = append(order, route)
		}
		byRoute[route] = append(byRoute[route], host)
	}
	for _, route := range order {
		hosts, err := v.hostsApart(route, byRoute[route])
		if err != nil {
			return nil, err
		}
		out = append(out, hosts...)
	}
	v.noted(xds.VirtualHostType, oneOf(names), out)
	return out, nil
}

// hostsApart are the virtual hosts of a route configuration as resources: those that are named, or all.
func (v view) hostsApart(route string, names []string) ([]*xds.Resource, error) {
	plan := v.p.capture().hostPlan(v, route)
	if plan == nil {
		return v.gatewayHostsApart(route, names)
	}
	if names == nil {
		return v.allHostsApart(route, plan)
	}
	var hosts []planned
	for _, name := range names {
		if i, ok := plan.byName[name]; ok {
			hosts = append(hosts, plan.hosts[i])
		}
	}
	return v.plannedHostsApart(route, hosts)
}

// allHostsKey is all that the virtual hosts of a route configuration depend on together, beside the scope: what the keys
// of each hold, for which the scope and the plan stand in part.
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

// allHostsApart makes the list of all once for all proxies that it is the same for.
func (v view) allHostsApart(route string, plan *hostPlan) ([]*xds.Resource, error) {
	key := allHostsKey{
		plan: plan, route: route, mesh: v.s.Mesh, namespace: v.p.Namespace, labels: v.askedLabels(), patches: v.patchesOfRoutes(route),
		captured: v.p.captured(), onDemand: v.p.OnDemand,
	}
	return v.scopeLists().get(key, func() ([]*xds.Resource, error) {
		hosts, err := v.plannedHostsApart(route, plan.hosts)
		if err != nil || !v.p.OnDemand {
			return hosts, err
		}
		others, err := v.othersApart(route)
		return append(hosts, others...), err
	})
}

func (v view) plannedHostsApart(route string, hosts []planned) ([]*xds.Resource, error) {
	out := make([]*xds.Resource, 0, len(hosts))
	for _, h := range hosts {
		r, err := v.hostApart(route, h)
		if err != nil {
			return nil, err
		}
		if r != nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// gatewayHostsApart are those of a router.
func (v view) gatewayHostsApart(route string, names []string) ([]*xds.Resource, error) {
	servers := v.serversOf(route)
	if v.p.Type != Router || len(servers) == 0 {
		return nil, nil
	}
	wanted := map[string]bool{}
	for _, name := range names {
		wanted[name] = true
	}
	var out []*xds.Resource
	for _, host := range acceptable(v.gatewayRoutes(route, servers)).GetVirtualHosts() {
		if names != nil && !wanted[host.GetName()] {
			continue
		}
		if host = v.patchHost(route, host); host == nil {
			v.patches.Take()
			continue
		}
		r, err := v.apartResource(route, host)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// apartResource names a virtual host by itself: Envoy removes it by the name inside, and so the two have to be the same.
func (v view) apartResource(route string, host *routev3.VirtualHost) (*xds.Resource, error) {
	host.Name = route + "/" + host.Name
	r, err := xds.NewResource(host.Name, host)
	return withNotes(v.patches.Take(), r, err)
}

// plainHostKey is all that the virtual host of a service without rules depends on.
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

// ruledHostKey is all that a virtual host with rules depends on. Of the scope that is what the rules lead to, or all.
type ruledHostKey struct {
	rule    *snapshot.VirtualService
	uses    snapshot.Uses
	svc     *registry.Service
	own     *snapshot.DestinationRule // the service's
	port    uint32
	domains string
	mesh    *meshconfig.MeshConfig

	scope     *snapshot.Scope // nil unless all of it matters
	namespace string          // the caller's, where the rules ask for it
	route     string
	name      string
	labels    string
	// patches are those of EnvoyFilters.
	patches  string
	captured bool
	onDemand bool
}

func (v view) ruledHostKey(route string, h planned) ruledHostKey {
	key := ruledHostKey{
		rule: h.rule, svc: h.svc, own: v.scope.DestinationRule(h.svc), port: h.port, domains: strings.Join(h.domains, " "), mesh: v.s.Mesh,
		route: route, name: h.name(), labels: v.askedLabels(), patches: v.patchesOfRoutes(route), captured: v.p.captured(),
		onDemand: v.p.OnDemand,
	}
	if h.rule.AsksNamespace() {
		key.namespace = v.p.Namespace
	}
	var ok bool
	if key.uses, ok = v.scope.Uses(h.rule); !ok {
		key.scope = v.scope
	}
	return key
}

// hostApart makes a planned virtual host once for all proxies that it is the same for; nil when its rule has nothing for
// this caller.
func (v view) hostApart(route string, h planned) (*xds.Resource, error) {
	cache := v.s.Cache
	var key any = plainHostKey{
		route: route, svc: h.svc, port: h.port, domains: strings.Join(h.domains, " "),
		rule: v.scope.DestinationRule(h.svc), mesh: v.s.Mesh, patches: v.patchesOfRoutes(route), captured: v.p.captured(),
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
		host := v.virtualHost(h)
		if host == nil {
			return nil, nil
		}
		host = acceptable(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{host}}).VirtualHosts[0]
		if host = v.patchHost(route, host); host == nil {
			v.patches.Take()
			return nil, nil
		}
		return v.apartResource(route, host)
	})
}

// routesOf completes a route configuration: by its virtual hosts, or by saying that they go by themselves. An Envoy that
// asks for them asks for none where there is one for all.
func (v view) routesOf(routes *routev3.RouteConfiguration, plan func() *hostPlan) *routev3.RouteConfiguration {
	if v.p.OnDemand {
		routes.Vhds = vhds()
		return routes
	}
	if v.p.HostsApart {
		routes.Vhds, routes.VirtualHosts = vhds(), []*routev3.VirtualHost{v.otherHosts()}
		return routes
	}
	routes.VirtualHosts = v.wholeHosts(plan())
	return routes
}
