package translate

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// routesKey contains the values on which a sidecar's route configuration depends, except its scope. The scope includes
// the mesh configuration.
type routesKey struct {
	name   string
	labels string // those labels of the proxy that rules match, with their values
	vhds   bool   // VHDS delivers the virtual hosts separately
	// onDemand: the proxy requests virtual hosts on demand.
	onDemand bool
	// captured determines how requests are routed to hosts that Envoy resolves by name.
	captured bool
	// patches is the key of the EnvoyFilter patches.
	patches string
}

// cachedRoutes returns a route configuration. It is built once for all proxies with the same key.
func (v proxyView) cachedRoutes(name string, build func() *routev3.RouteConfiguration) (*xds.Resource, error) {
	key := routesKey{name: name, labels: v.sourceLabels(), vhds: v.p.UseVHDS, onDemand: v.p.OnDemand, captured: v.p.isCaptured(), patches: v.patchesOfRoutes(name)}
	return v.scope.Cache().Get(key, func() (*xds.Resource, error) {
		return v.routesResource(sanitizeRoutes(build()), v.vhdsDomains(name))
	})
}

// routesResource applies the proxy's patches to a route configuration, and returns the result as a resource. taken
// contains the domains of the virtual hosts that are delivered by VHDS.
func (v proxyView) routesResource(routes *routev3.RouteConfiguration, taken domains) (*xds.Resource, error) {
	name, hostsApart := routes.GetName(), routes.GetVhds() != nil
	routes = v.patchRoutes(name, routes, taken)
	var r *xds.Resource
	var err error
	if v.p.UseVHDS {
		r, err = xds.NewRouteConfiguration(name, routes, hostsApart)
	} else {
		r, err = xds.NewResource(name, routes)
	}
	return attachSkippedPatches(v.patches.TakeSkipped(), r, err)
}

// sourceLabels returns those labels of the proxy on which conditions of rules depend, with their values.
func (v proxyView) sourceLabels() string {
	var b strings.Builder
	for _, name := range v.scope.SourceLabels {
		if value, ok := v.p.Labels[name]; ok {
			fmt.Fprintf(&b, "%q=%q ", name, value)
		}
	}
	return b.String()
}

// domains assigns each domain to the first virtual host that claims it, because Envoy rejects duplicate domains.
type domains map[string]bool

func (d domains) claim(wanted ...string) []string {
	var out []string
	for _, w := range wanted {
		if key := strings.ToLower(w); !d[key] {
			d[key] = true
			out = append(out, w)
		}
	}
	return out
}

// plannedHost is a virtual host without its routes. Its name and domains depend on the other virtual hosts of the route
// configuration; its routes do not.
type plannedHost struct {
	host    string
	port    uint32
	domains []string
	// svc is the service of the host; nil for a host that exists only in a rule.
	svc *registry.Service
	// rule contains the routes. It is nil if the service has no VirtualService.
	rule *snapshot.VirtualService
	// forInstances: the virtual host is for the individual instances of a headless service, which clients address by
	// name.
	forInstances bool
}

// instanceHost returns the host pattern that matches the instances of a headless service.
func instanceHost(host string) string { return "*." + host }

func (h plannedHost) name() string { return h.host + ":" + strconv.FormatUint(uint64(h.port), 10) }

// hostPlan contains the planned virtual hosts of one route configuration, in order. It does not contain the catch-all
// virtual host.
type hostPlan struct {
	hosts  []plannedHost
	byName map[string]int
	// domains returns the index of all domains, which is built when it is first used.
	domains func() domainIndex
}

func newHostPlan(hosts []plannedHost) *hostPlan {
	plan := &hostPlan{hosts: hosts, byName: make(map[string]int, len(hosts))}
	plan.domains = sync.OnceValue(func() domainIndex { return indexDomains(hosts) })
	for i, h := range hosts {
		plan.byName[h.name()] = i
	}
	return plan
}

// hostPlanKey is the key in a scope's cache for the plan of a route configuration.
type hostPlanKey string

// cachedHostPlan returns the plan of a route configuration. The plan is built once for all proxies to which the same
// host names are visible.
func (v proxyView) cachedHostPlan(route string, build func() []plannedHost) *hostPlan {
	return v.scope.SharedMemo(hostPlanKey(route), func() any { return newHostPlan(build()) }).(*hostPlan)
}

// buildVirtualHost returns a planned virtual host with its routes, or nil if its rule has no routes for this caller.
func (v proxyView) buildVirtualHost(h plannedHost) *routev3.VirtualHost {
	r := v.routing(snapshot.MeshGateway, h.port)
	switch {
	case h.forInstances:
		return v.disableIdleTimeout(newVirtualHost(h.host, h.port, h.domains, r.routesTo(h.svc, instanceSubset)))
	case h.svc != nil:
		return v.disableIdleTimeout(newVirtualHost(h.host, h.port, h.domains, r.serviceRoutes(h.svc)))
	}
	routes := r.routes(h.rule)
	if len(routes) == 0 {
		return nil
	}
	return v.disableIdleTimeout(newVirtualHost(h.host, h.port, h.domains, routes))
}

// buildVirtualHosts returns all virtual hosts of a plan, followed by the catch-all.
func (v proxyView) buildVirtualHosts(plan *hostPlan) []*routev3.VirtualHost {
	var hosts []*routev3.VirtualHost
	for _, h := range plan.hosts {
		if made := v.buildVirtualHost(h); made != nil {
			hosts = append(hosts, made)
		}
	}
	return append(hosts, v.catchAllHost())
}

// httpProxyHosts returns the virtual hosts for a workload that uses its sidecar as an HTTP proxy. Requests to all ports
// of all services arrive at one listener, so the port in the Host header distinguishes them.
func (v proxyView) httpProxyHosts() []plannedHost {
	taken := domains{}
	full := v.fullNames(taken)
	var hosts []plannedHost
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if !port.Protocol.MayBeHTTP() || !v.scope.IsVisibleAtPort(svc, port.Number) {
				continue
			}
			names := append(full[hostPort{svc, port.Number}], taken.claim(authorityForms(v.shortNames(svc), port.Number)...)...)
			if len(names) == 0 {
				continue
			}
			hosts = append(hosts, v.planServiceHost(svc, port.Number, names))
		}
	}
	return append(hosts, v.ruleHosts(func(host string) []string { return taken.claim(authorityForms([]string{host}, 80)...) }, 80)...)
}

func (v proxyView) planServiceHost(svc *registry.Service, port uint32, names []string) plannedHost {
	return plannedHost{host: svc.Hostname, port: port, domains: names, svc: svc, rule: v.scope.VirtualService(svc.Hostname)}
}

type hostPort struct {
	svc  *registry.Service
	port uint32
}

// fullNames claims the full names of all services in taken, and returns them by port. It must run before the short
// names are claimed, so that no short name or alias uses another service's full name.
func (v proxyView) fullNames(taken domains) map[hostPort][]string {
	out := map[hostPort][]string{}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if port.Protocol.MayBeHTTP() && v.scope.IsVisibleAtPort(svc, port.Number) {
				out[hostPort{svc, port.Number}] = taken.claim(authorityForms([]string{svc.Hostname}, port.Number)...)
			}
		}
	}
	return out
}

// shortNames returns the additional names that the proxy's workload may use for a service: short names, aliases, other
// visible host names, and addresses.
func (v proxyView) shortNames(svc *registry.Service) []string {
	var out []string
	for known := range v.scope.VisibleNames(svc) {
		if known != svc {
			out = append(out, known.Hostname)
		}
		if known.Kubernetes && known.Namespace == v.p.Namespace {
			out = append(out, known.Name)
		}
		out = append(out, known.Aliases...)
	}
	for _, a := range svc.Addresses {
		out = append(out, a.String())
	}
	return out
}

// authorityForms returns the names as a Host header may contain them: with the port and, for port 80, also without it.
func authorityForms(names []string, port uint32) []string {
	var out []string
	for _, name := range names {
		if port == 80 {
			out = append(out, bracketIPv6(name))
		}
		out = append(out, net.JoinHostPort(name, strconv.FormatUint(uint64(port), 10)))
	}
	return out
}

func bracketIPv6(name string) string {
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}

func newVirtualHost(host string, port uint32, names []string, routes []*routev3.Route) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: fmt.Sprintf("%s:%d", host, port), Domains: names, Routes: routes}
}

// ruleHosts returns the virtual hosts on one port for hosts that exist only in VirtualServices. take returns those
// domains of a host that no other virtual host has.
func (v proxyView) ruleHosts(take func(host string) []string, port uint32) []plannedHost {
	var out []plannedHost
	for _, vs := range v.scope.VirtualServices {
		for _, host := range vs.Hosts {
			if host == "*" || v.scope.MatchesService(host) || v.scope.VirtualService(host) != vs {
				continue
			}
			if names := take(host); len(names) > 0 {
				out = append(out, plannedHost{host: host, port: port, domains: names, rule: vs})
			}
		}
	}
	return out
}

// The names of the catch-all virtual host. EnvoyFilters may match these names.
const (
	allowAny = "allow_any"
	blockAll = "block_all"
)

// blockReservedPorts is the name of the route that rejects requests to ports of proxies and control planes.
const blockReservedPorts = "block_reserved_ports"

// catchAllHost returns the virtual host for hosts outside the mesh.
func (v proxyView) catchAllHost() *routev3.VirtualHost {
	host := &routev3.VirtualHost{Name: blockAll, Domains: []string{"*"}}
	if v.scope.AllowAny {
		host.Name = allowAny
		if !v.p.isCaptured() {
			host.Routes = append(host.Routes, v.reservedPortsRoute())
		}
		host.Routes = append(host.Routes, &routev3.Route{Name: allowAny, Match: matchAllPaths(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: v.unknownDestinationCluster()},
			Timeout:          duration(0),
		}}})
	} else {
		host.Routes = append(host.Routes, &routev3.Route{Name: blockAll, Match: matchAllPaths(), Action: unknownHostResponse()})
	}
	return v.disableIdleTimeout(host)
}

// reservedPortsRoute returns a route that rejects requests whose Host header contains a port of a proxy or a control
// plane. Without capture, Envoy connects to the host and port in the request, which could be Envoy's own admin
// interface.
func (v proxyView) reservedPortsRoute() *routev3.Route {
	var ports []string
	for _, port := range v.s.Registry.Options().ReservedPorts() {
		ports = append(ports, strconv.FormatUint(uint64(port), 10))
	}
	match := matchAllPaths()
	match.Headers = []*routev3.HeaderMatcher{{
		Name: ":authority",
		// Envoy accepts a sign and leading zeros in a port number.
		HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: regex(`.*:[^0-9]*0*(` + strings.Join(ports, "|") + `)[^0-9]*`)},
	}}
	return &routev3.Route{Name: blockReservedPorts, Match: match, Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{
		Status: http.StatusForbidden,
		Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{
			InlineString: "this port belongs to a proxy or the control plane: connect to it directly\n",
		}},
	}}}
}
