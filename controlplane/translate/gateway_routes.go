package translate

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
)

// boundHosts returns the hosts for which a server uses a VirtualService: the intersection of the hosts of both. If two
// patterns overlap, the result contains the more specific one.
func (s server) boundHosts(vs *snapshot.VirtualService) []string {
	var out []string
	for _, h := range s.spec.GetHosts() {
		namespace, host, ok := strings.Cut(h, "/")
		if !ok {
			namespace, host = "*", h
		}
		if namespace == "." {
			namespace = s.gw.Namespace
		}
		if namespace != "*" && namespace != vs.Namespace {
			continue
		}
		for _, wanted := range vs.Hosts {
			if name, ok := intersectHosts(host, wanted); ok && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	return out
}

// intersectHosts returns the intersection of two host patterns. It returns false if the intersection is empty.
func intersectHosts(a, b string) (string, bool) {
	switch {
	case snapshot.MatchHost(a, b):
		return b, true
	case snapshot.MatchHost(b, a):
		return a, true
	}
	return "", false
}

// gatewayRoutes returns the route configuration that is called name and that the servers share. If several
// VirtualServices have the same host, their rules are merged, oldest first.
func (v proxyView) gatewayRoutes(name string, servers []server) *routev3.RouteConfiguration {
	out := &routev3.RouteConfiguration{
		Name: name, ValidateClusters: boolean(false), IgnorePortInHostMatching: true, TypedPerFilterConfig: v.rbacSettings(),
	}
	byHost := map[string]*routev3.VirtualHost{}
	host := func(h string, s server) *routev3.VirtualHost {
		key := strings.ToLower(h)
		if byHost[key] == nil {
			byHost[key] = newVirtualHost(h, s.port, []string{h}, nil)
			out.VirtualHosts = append(out.VirtualHosts, byHost[key])
		}
		return byHost[key]
	}
	done := map[string]bool{}
	for _, s := range servers {
		v.bindRules(s, host, done)
		if s.defaultCluster() != "" {
			for _, h := range s.hosts() {
				host(h, s)
			}
			for _, vh := range out.VirtualHosts {
				if matchesAnyHost(s.hosts(), vh.Domains[0]) {
					vh.Routes = append(vh.Routes, s.defaultRoute())
				}
			}
		}
		if !config.RedirectsToHTTPS(s.spec) {
			continue
		}
		for _, h := range s.hosts() {
			host(h, s)
		}
		for _, vh := range out.VirtualHosts {
			if matchesAnyHost(s.hosts(), vh.Domains[0]) {
				vh.RequireTls = routev3.VirtualHost_ALL
			}
		}
	}
	for _, vh := range out.VirtualHosts {
		vh.Routes = catchAllLast(vh.Routes)
	}
	slices.SortStableFunc(out.VirtualHosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// bindRules adds the routes of the VirtualServices that are bound to a server. host returns the virtual host for a
// domain, to which the routes are added. done prevents duplicate routes if several servers of one Gateway share the
// port.
func (v proxyView) bindRules(s server, host func(string, server) *routev3.VirtualHost, done map[string]bool) {
	gateway := s.gw.FullName()
	r := v.routing(gateway, s.spec.GetPort().GetNumber())
	for _, vs := range v.s.VirtualServicesForGateway(gateway, v.p.Namespace) {
		routes := r.routes(vs)
		if len(routes) == 0 {
			continue
		}
		for _, name := range s.boundHosts(vs) {
			key := vs.Key.String() + " " + gateway + " " + strings.ToLower(name)
			if done[key] {
				continue
			}
			done[key] = true
			vh := host(name, s)
			vh.Routes = append(vh.Routes, routes...)
		}
	}
}

func matchesAnyHost(patterns []string, host string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return snapshot.MatchHost(p, host) })
}

// catchAllLast moves the first catch-all route to the end and removes other ones. Otherwise the catch-all route of one
// VirtualService would take effect before the routes of other VirtualServices for the same host.
func catchAllLast(routes []*routev3.Route) []*routev3.Route {
	var out []*routev3.Route
	var last *routev3.Route
	for _, r := range routes {
		switch {
		case !matchesEverything(r.GetMatch()):
			out = append(out, r)
		case last == nil:
			last = r
		}
	}
	if last != nil {
		out = append(out, last)
	}
	return out
}
