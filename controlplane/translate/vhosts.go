package translate

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// routesKey is all that a sidecar's route configuration depends on beside its scope, of which the mesh's configuration is
// a part.
type routesKey struct {
	name   string
	labels string // those that rules ask for, with their values
	apart  bool   // without the virtual hosts
	// onDemand: of a proxy that asks for virtual hosts.
	onDemand bool
	// captured decides what becomes of hosts that are looked up by name.
	captured bool
	// patches are those of EnvoyFilters.
	patches string
}

// cachedRoutes makes a route configuration once for all proxies that it is the same for.
func (v view) cachedRoutes(name string, build func() *routev3.RouteConfiguration) (*xds.Resource, error) {
	key := routesKey{name: name, labels: v.askedLabels(), apart: v.p.HostsApart, onDemand: v.p.OnDemand, captured: v.p.captured(), patches: v.patchesOfRoutes(name)}
	return v.scope.Cache().Get(key, func() (*xds.Resource, error) {
		return v.routesResource(acceptable(build()), v.domainsApart(name))
	})
}

// routesResource is the resource of a route configuration with the proxy's patches. taken are the domains of the virtual
// hosts that go by themselves.
func (v view) routesResource(routes *routev3.RouteConfiguration, taken domains) (*xds.Resource, error) {
	name, hostsApart := routes.GetName(), routes.GetVhds() != nil
	routes = v.patchRoutes(name, routes, taken)
	var r *xds.Resource
	var err error
	if v.p.HostsApart {
		r, err = xds.NewRoutes(name, routes, hostsApart)
	} else {
		r, err = xds.NewResource(name, routes)
	}
	return withNotes(v.patches.Take(), r, err)
}

// askedLabels are the proxy's labels as far as rules ask for the caller's.
func (v view) askedLabels() string {
	var b strings.Builder
	for _, name := range v.scope.SourceLabels {
		if value, ok := v.p.Labels[name]; ok {
			fmt.Fprintf(&b, "%q=%q ", name, value)
		}
	}
	return b.String()
}

// domains gives each domain to the first virtual host that wants it: Envoy refuses all for one that is there twice.
type domains map[string]bool

func (d domains) take(wanted ...string) []string {
	var out []string
	for _, w := range wanted {
		if key := strings.ToLower(w); !d[key] {
			d[key] = true
			out = append(out, w)
		}
	}
	return out
}

// planned is a virtual host before its routes are made. What it is called, and which domains are its own, depends on all
// others of its route configuration; what its routes are does not.
type planned struct {
	host    string
	port    uint32
	domains []string
	// svc is whose host it is; nil for the host of a rule that is no service.
	svc *registry.Service
	// rule is what its requests follow; nil where a service has none.
	rule *snapshot.VirtualService
	// instances: it is for the instances of a headless service, by their names.
	instances bool
}

// instancesOf is the host of the instances of a headless service.
func instancesOf(host string) string { return "*." + host }

func (h planned) name() string { return h.host + ":" + strconv.FormatUint(uint64(h.port), 10) }

// hostPlan are the virtual hosts of one route configuration, in their order, without the one for unknown hosts.
type hostPlan struct {
	hosts  []planned
	byName map[string]int
	// domains are those of all hosts, and which host has them; told apart when the first proxy asks by them.
	domains func() domainIndex
}

func newHostPlan(hosts []planned) *hostPlan {
	plan := &hostPlan{hosts: hosts, byName: make(map[string]int, len(hosts))}
	plan.domains = sync.OnceValue(func() domainIndex { return indexDomains(hosts) })
	for i, h := range hosts {
		plan.byName[h.name()] = i
	}
	return plan
}

// planKey is the name of a route configuration in the memory of a scope.
type planKey string

// plan gives the virtual hosts of a route configuration, told apart once for all proxies that see the same.
func (v view) plan(route string, tell func() []planned) *hostPlan {
	return v.scope.MemoOfNames(planKey(route), func() any { return newHostPlan(tell()) }).(*hostPlan)
}

// virtualHost makes a planned one; nil when its rule has nothing for this caller.
func (v view) virtualHost(h planned) *routev3.VirtualHost {
	r := v.routing(snapshot.MeshGateway, h.port)
	switch {
	case h.instances:
		return v.unhurried(virtualHost(h.host, h.port, h.domains, r.allTo(h.svc, theInstance)))
	case h.svc != nil:
		return v.unhurried(virtualHost(h.host, h.port, h.domains, r.serviceRoutes(h.svc)))
	}
	routes := r.routes(h.rule)
	if len(routes) == 0 {
		return nil
	}
	return v.unhurried(virtualHost(h.host, h.port, h.domains, routes))
}

// wholeHosts makes all of a plan, and the one for unknown hosts.
func (v view) wholeHosts(plan *hostPlan) []*routev3.VirtualHost {
	var hosts []*routev3.VirtualHost
	for _, h := range plan.hosts {
		if made := v.virtualHost(h); made != nil {
			hosts = append(hosts, made)
		}
	}
	return append(hosts, v.otherHosts())
}

// httpProxyHosts are the virtual hosts for a workload that calls its sidecar as an HTTP proxy: requests to all ports of
// all services arrive in one place, and are told apart by the port in their Host header.
func (v view) httpProxyHosts() []planned {
	taken := domains{}
	full := v.fullNames(taken)
	var hosts []planned
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if !port.Protocol.MayBeHTTP() || !v.scope.SeesAt(svc, port.Number) {
				continue
			}
			names := append(full[hostPort{svc, port.Number}], taken.take(atPort(v.shortNames(svc), port.Number)...)...)
			if len(names) == 0 {
				continue
			}
			hosts = append(hosts, v.serviceHost(svc, port.Number, names))
		}
	}
	return append(hosts, v.ruleHosts(func(host string) []string { return taken.take(atPort([]string{host}, 80)...) }, 80)...)
}

func (v view) serviceHost(svc *registry.Service, port uint32, names []string) planned {
	return planned{host: svc.Hostname, port: port, domains: names, svc: svc, rule: v.scope.VirtualService(svc.Hostname)}
}

type hostPort struct {
	svc  *registry.Service
	port uint32
}

// fullNames gives services their full names before any gets its short ones: no alias may take another's name.
func (v view) fullNames(taken domains) map[hostPort][]string {
	out := map[hostPort][]string{}
	for _, svc := range v.scope.Services {
		for _, port := range svc.Ports {
			if port.Protocol.MayBeHTTP() && v.scope.SeesAt(svc, port.Number) {
				out[hostPort{svc, port.Number}] = taken.take(atPort([]string{svc.Hostname}, port.Number)...)
			}
		}
	}
	return out
}

// shortNames are the names of a service beside its full one, as the proxy's workload knows them: those of its aliases too.
func (v view) shortNames(svc *registry.Service) []string {
	var out []string
	for known := range v.scope.Names(svc) {
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

// atPort gives the forms that names have in a Host header: with the port, and for port 80 without it too.
func atPort(names []string, port uint32) []string {
	var out []string
	for _, name := range names {
		if port == 80 {
			out = append(out, bracketed(name))
		}
		out = append(out, net.JoinHostPort(name, strconv.FormatUint(uint64(port), 10)))
	}
	return out
}

func bracketed(name string) string {
	if strings.Contains(name, ":") {
		return "[" + name + "]"
	}
	return name
}

func virtualHost(host string, port uint32, names []string, routes []*routev3.Route) *routev3.VirtualHost {
	return &routev3.VirtualHost{Name: fmt.Sprintf("%s:%d", host, port), Domains: names, Routes: routes}
}

// ruleHosts are the hosts of rules that are no service: such a name exists by its rule alone, on one port. take gives the
// domains for a host, as far as nobody else has them.
func (v view) ruleHosts(take func(host string) []string, port uint32) []planned {
	var out []planned
	for _, vs := range v.scope.VirtualServices {
		for _, host := range vs.Hosts {
			if host == "*" || v.scope.Covers(host) || v.scope.VirtualService(host) != vs {
				continue
			}
			if names := take(host); len(names) > 0 {
				out = append(out, planned{host: host, port: port, domains: names, rule: vs})
			}
		}
	}
	return out
}

// The names of the virtual host for them, which EnvoyFilters may name.
const (
	allowAny = "allow_any"
	blockAll = "block_all"
)

// otherHosts is what becomes of requests to hosts that the mesh does not know.
func (v view) otherHosts() *routev3.VirtualHost {
	route := &routev3.Route{Name: blockAll, Match: everyPath(), Action: unknownHost()}
	if v.scope.AllowAny {
		route = &routev3.Route{Name: allowAny, Match: everyPath(), Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: v.unknownCluster()},
			Timeout:          duration(0),
		}}}
	}
	return v.unhurried(&routev3.VirtualHost{Name: route.Name, Domains: []string{"*"}, Routes: []*routev3.Route{route}})
}
