package envoyfilter

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// Routes contains the attributes of a route configuration to which the match conditions of patches refer.
type Routes struct {
	Side Side
	// Name is the name of the route configuration.
	Name string
	// Port is the port of the services in the route configuration. It is 0 if the services have several ports. In that
	// case, the name of each virtual host ends with a port.
	Port uint32
	// Gateways contains the full names of the Gateways to which the route configuration belongs. PortNames contains the
	// names of the ports of their servers.
	Gateways, PortNames []string
}

// matches reports whether a patch may apply to a part of the route configuration.
func (r Routes) matches(p *patch) bool {
	if !routePatchTypes[p.to] || !p.appliesTo(r.Side) {
		return false
	}
	if p.match.GetObjectTypes() == nil {
		return true
	}
	m := p.match.GetRouteConfiguration()
	switch {
	case m == nil,
		m.GetName() != "" && m.GetName() != r.Name,
		m.GetGateway() != "" && !slices.Contains(r.Gateways, m.GetGateway()),
		m.GetPortName() != "" && !slices.Contains(r.PortNames, m.GetPortName()):
		return false
	}
	return m.GetPortNumber() == 0 || m.GetPortNumber() == r.Port || r.Port == 0 && p.to != networking.EnvoyFilter_ROUTE_CONFIGURATION
}

var routePatchTypes = map[networking.EnvoyFilter_ApplyTo]bool{
	networking.EnvoyFilter_ROUTE_CONFIGURATION: true, networking.EnvoyFilter_VIRTUAL_HOST: true, networking.EnvoyFilter_HTTP_ROUTE: true,
}

// RoutesKey returns a key that identifies the patches for a route configuration and for its virtual hosts and routes.
// The key is empty if there are no such patches.
func (s *Set) RoutesKey(r Routes) string { return patchesKey(s.selectPatches(r.matches)) }

// RouteConfiguration applies the patches to a route configuration and to the virtual hosts in it. taken contains the
// lower-case domains of virtual hosts that are separate resources. Patches cannot add virtual hosts with these domains.
func (s *Set) RouteConfiguration(r Routes, rc *routev3.RouteConfiguration, taken map[string]bool) *routev3.RouteConfiguration {
	if len(s.selectPatches(r.matches)) == 0 {
		return rc
	}
	hosts := make([]*routev3.VirtualHost, 0, len(rc.GetVirtualHosts()))
	for _, host := range rc.GetVirtualHosts() {
		if host = s.VirtualHost(r, host); host != nil {
			hosts = append(hosts, host)
		}
	}
	patched := s.RouteSettings(r, rc)
	merged := patched.GetVirtualHosts()
	patched.VirtualHosts = append(slices.Clip(hosts), merged...)
	if newRouteCheck(taken)(patched) != nil {
		patched.VirtualHosts = hosts
	}
	return s.addHosts(r, patched, newRouteCheck(taken))
}

// RouteSettings returns a copy of a route configuration after the patches for ROUTE_CONFIGURATION. The copy contains
// only the virtual hosts that these patches add.
func (s *Set) RouteSettings(r Routes, rc *routev3.RouteConfiguration) *routev3.RouteConfiguration {
	bare := &routev3.RouteConfiguration{}
	merge(bare, rc)
	bare.VirtualHosts = nil
	for _, p := range s.patchesFor(networking.EnvoyFilter_ROUTE_CONFIGURATION) {
		if !p.isMerge() || !r.matches(p) {
			continue
		}
		bare = tryPatch(s, p, "route configuration", r.Name, bare, nil, func(rc *routev3.RouteConfiguration) (bool, error) {
			p.merge(rc, p.value)
			rc.Name = r.Name
			return true, nil
		})
	}
	return bare
}

// addHosts adds the virtual hosts that patches contain. It skips a patch if sound returns an error for the result, for
// example because a domain is already in use.
func (s *Set) addHosts(r Routes, rc *routev3.RouteConfiguration, sound func(*routev3.RouteConfiguration) error) *routev3.RouteConfiguration {
	for _, p := range s.patchesFor(networking.EnvoyFilter_VIRTUAL_HOST) {
		// A patch for one port does not add its virtual host to a route configuration for several ports.
		if port := p.match.GetRouteConfiguration().GetPortNumber(); p.op != networking.EnvoyFilter_Patch_ADD || !r.matches(p) || port != 0 && port != r.Port {
			continue
		}
		rc = tryPatch(s, p, "route configuration", r.Name, rc, sound, func(rc *routev3.RouteConfiguration) (bool, error) {
			rc.VirtualHosts = append(rc.VirtualHosts, proto.Clone(p.value).(*routev3.VirtualHost))
			return true, nil
		})
	}
	return rc
}

// VirtualHost applies the patches to one virtual host and its routes. It returns nil if a patch removes the virtual
// host.
func (s *Set) VirtualHost(r Routes, host *routev3.VirtualHost) *routev3.VirtualHost {
	for _, to := range []networking.EnvoyFilter_ApplyTo{networking.EnvoyFilter_VIRTUAL_HOST, networking.EnvoyFilter_HTTP_ROUTE} {
		for _, p := range s.patchesFor(to) {
			if p.to == networking.EnvoyFilter_VIRTUAL_HOST && p.op == networking.EnvoyFilter_Patch_ADD || !r.matches(p) || !r.matchesHost(p, host) {
				continue
			}
			if to == networking.EnvoyFilter_VIRTUAL_HOST && p.op == networking.EnvoyFilter_Patch_REMOVE {
				return nil
			}
			host = tryPatch(s, p, "virtual host", host.GetName(), host, nil, p.changeHost)
		}
	}
	return host
}

func (r Routes) matchesHost(p *patch, host *routev3.VirtualHost) bool {
	m := p.match.GetRouteConfiguration()
	if r.Port == 0 && m.GetPortNumber() != 0 && m.GetPortNumber() != hostPort(host.GetName()) {
		return false
	}
	want := m.GetVhost()
	return (want.GetName() == "" || want.GetName() == host.GetName()) &&
		(want.GetDomainName() == "" || slices.Contains(host.GetDomains(), want.GetDomainName()))
}

func hostPort(name string) uint32 {
	n, err := strconv.ParseUint(name[strings.LastIndexByte(name, ':')+1:], 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

func (p *patch) changeHost(host *routev3.VirtualHost) (changed bool, err error) {
	if p.to == networking.EnvoyFilter_HTTP_ROUTE {
		return p.changeRoutes(host)
	}
	// The name and the domains must be unique, so a patch cannot change them.
	name, domains := host.GetName(), host.GetDomains()
	switch p.op {
	case networking.EnvoyFilter_Patch_MERGE, networking.EnvoyFilter_Patch_MERGE_AND_REPLACE_LIST:
		p.merge(host, p.value)
	case networking.EnvoyFilter_Patch_REPLACE:
		proto.Reset(host)
		merge(host, p.value)
	default:
		return false, nil
	}
	host.Name, host.Domains = name, domains
	return true, nil
}

func (p *patch) changeRoutes(host *routev3.VirtualHost) (changed bool, err error) {
	want := p.match.GetRouteConfiguration().GetVhost().GetRoute()
	anchored := want.GetName() != "" || want.GetAction() != networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ANY
	// If the patch has no condition on routes, MERGE and REMOVE apply to all routes.
	if p.isMerge() || p.op == networking.EnvoyFilter_Patch_REMOVE {
		anchored = true
	}
	host.Routes, changed, err = editList(host.GetRoutes(), p, anchored,
		func(route *routev3.Route) bool { return matchesRoute(want, route) }, func(*routev3.Route) bool { return false })
	return changed, err
}

func matchesRoute(want *networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch, route *routev3.Route) bool {
	if want.GetName() != "" && want.GetName() != route.GetName() {
		return false
	}
	switch want.GetAction() {
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_ROUTE:
		return route.GetRoute() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_REDIRECT:
		return route.GetRedirect() != nil
	case networking.EnvoyFilter_RouteConfigurationMatch_RouteMatch_DIRECT_RESPONSE:
		return route.GetDirectResponse() != nil
	}
	return true
}
