package translate

import (
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// HeldHosts contains those virtual hosts of one route configuration that a proxy has requested on demand.
type HeldHosts struct {
	v     proxyView
	route string
	plan  *hostPlan
	// resourceNames maps requested names to resource names.
	resourceNames map[string]string
	// planned contains indexes of virtual hosts in the plan. unknown contains hosts outside the mesh. all: the proxy
	// has all planned virtual hosts, and the catch-all virtual host for unknown hosts.
	planned map[int]bool
	unknown map[string]bool
	all     bool
}

// NewHeldHosts resolves requested names of a route configuration to virtual hosts. A name is the part of a resource
// name after the slash. It is the name of a virtual host, or the host in a request. If EnvoyFilters patch the routes or
// all is set, the proxy receives all virtual hosts. NewHeldHosts returns nil if the route configuration has no
// on-demand virtual hosts.
func NewHeldHosts(s *snapshot.Snapshot, p *Proxy, route string, names []string, all bool) *HeldHosts {
	if !p.OnDemand {
		return nil
	}
	v := newView(s, p)
	plan := p.interceptionMode().hostPlan(v, route)
	if plan == nil {
		return nil
	}
	h := &HeldHosts{
		v: v, route: route, plan: plan, resourceNames: make(map[string]string, len(names)), planned: map[int]bool{}, unknown: map[string]bool{},
		all: all || v.patchesOfRoutes(route) != "",
	}
	for _, name := range names {
		h.add(name)
	}
	h.addCovered()
	return h
}

// add resolves one requested name and records the virtual host.
func (h *HeldHosts) add(name string) {
	if i, ok := h.plan.byName[name]; ok && h.exists(i) {
		h.planned[i], h.resourceNames[name] = true, h.route+"/"+name
		return
	}
	domain := h.v.normalizeHost(name)
	if i, ok := h.plan.domains().find(domain, h.exists); ok {
		h.planned[i], h.resourceNames[name] = true, h.route+"/"+h.plan.hosts[i].name()
		return
	}
	switch {
	case h.all:
		h.resourceNames[name] = h.route + "/" + h.v.catchAllHost().GetName()
	// Do not add a pattern, because it would match other hosts too. Do not add the name of a catch-all virtual host,
	// which would be ambiguous later.
	case domain != "" && !strings.Contains(domain, "*") && !IsCatchAllHost(domain):
		h.unknown[domain], h.resourceNames[name] = true, h.route+"/"+domain
	}
}

// exists reports whether a planned virtual host has routes for this proxy. The virtual host of a service always has
// routes.
func (h *HeldHosts) exists(i int) bool {
	host := h.plan.hosts[i]
	if host.svc != nil && h.v.patches == nil {
		return true
	}
	r, err := h.v.virtualHostResource(h.route, host)
	return r != nil || err != nil
}

// addCovered adds the planned hosts that match a wildcard domain of a virtual host that the proxy already has.
// Otherwise Envoy would use the wildcard virtual host for requests to these hosts.
func (h *HeldHosts) addCovered() {
	var patterns []string
	for i := range h.planned {
		for _, domain := range h.plan.hosts[i].domains {
			if strings.HasPrefix(domain, "*") {
				patterns = append(patterns, strings.ToLower(domain[1:]))
			}
		}
	}
	if len(patterns) == 0 {
		return
	}
	for domain, i := range h.plan.domains().byDomain {
		if slices.ContainsFunc(patterns, func(suffix string) bool { return strings.HasSuffix(domain, suffix) && len(domain) > len(suffix) }) {
			h.planned[i] = true
		}
	}
}

// ResourceName returns the resource name for a requested name, or "" if the name has no virtual host.
func (h *HeldHosts) ResourceName(name string) string { return h.resourceNames[name] }

// Unknown returns the number of requested hosts that are outside the mesh.
func (h *HeldHosts) Unknown() int { return len(h.unknown) }

// All reports whether the proxy has all virtual hosts, including a catch-all for unknown hosts.
func (h *HeldHosts) All() bool { return h != nil && h.all }

// Names returns the resource names of the virtual hosts that the proxy has, or nil if it has all.
func (h *HeldHosts) Names() map[string]bool {
	if h == nil || h.all {
		return nil
	}
	out := make(map[string]bool, len(h.planned)+len(h.unknown))
	for i := range h.planned {
		out[h.route+"/"+h.plan.hosts[i].name()] = true
	}
	for domain := range h.unknown {
		out[h.route+"/"+domain] = true
	}
	return out
}

// Resources returns the resources for whose name wanted returns true.
func (h *HeldHosts) Resources(wanted func(name string) bool) ([]*xds.Resource, error) {
	out, err := h.resources(wanted)
	h.v.reportSkippedPatches(xds.VirtualHostType, func(name string) bool { return strings.HasPrefix(name, h.route+"/") && wanted(name) }, out)
	return out, err
}

func (h *HeldHosts) resources(wanted func(name string) bool) ([]*xds.Resource, error) {
	if h.all {
		all, err := h.v.allVirtualHostResources(h.route, h.plan)
		return slices.DeleteFunc(slices.Clone(all), func(r *xds.Resource) bool { return !wanted(r.Name) }), err
	}
	var hosts []plannedHost
	for _, i := range slices.Sorted(maps.Keys(h.planned)) {
		if host := h.plan.hosts[i]; wanted(h.route + "/" + host.name()) {
			hosts = append(hosts, host)
		}
	}
	out, err := h.v.plannedHostResources(h.route, hosts)
	if err != nil {
		return nil, err
	}
	for _, domain := range slices.Sorted(maps.Keys(h.unknown)) {
		if !wanted(h.route + "/" + domain) {
			continue
		}
		r, err := h.v.unknownHostResource(h.route, domain)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// unknownHostsResource returns the catch-all virtual host. It returns no resource if an EnvoyFilter removes the virtual
// host.
func (v proxyView) unknownHostsResource(route string) ([]*xds.Resource, error) {
	host := sanitizeRoutes(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{v.catchAllHost()}}).VirtualHosts[0]
	if host = v.patchHost(route, host); host == nil {
		v.patches.TakeSkipped()
		return nil, nil
	}
	r, err := v.newVirtualHostResource(route, host)
	return []*xds.Resource{r}, err
}

// IsCatchAllHost reports whether the catch-all virtual host is called name. The catch-all virtual host matches all
// hosts outside the mesh.
func IsCatchAllHost(name string) bool { return name == allowAny || name == blockAll }

// unknownHostKey contains those values on which the virtual host of an unknown host depends, except the scope.
type unknownHostKey struct{ route, domain string }

// unknownHostResource returns the virtual host of one host outside the mesh.
func (v proxyView) unknownHostResource(route, domain string) (*xds.Resource, error) {
	return v.scope.Cache().Get(unknownHostKey{route, domain}, func() (*xds.Resource, error) {
		host := v.catchAllHost()
		host.Name, host.Domains = domain, []string{domain}
		return v.newVirtualHostResource(route, host)
	})
}

// disableIdleTimeout disables the stream idle timeout in the routes, if the proxy requests virtual hosts on demand. The
// timeout must only limit the wait for virtual hosts.
func (v proxyView) disableIdleTimeout(host *routev3.VirtualHost) *routev3.VirtualHost {
	if !v.p.OnDemand {
		return host
	}
	for _, route := range host.GetRoutes() {
		if action := route.GetRoute(); action != nil {
			action.IdleTimeout = duration(0)
		}
	}
	return host
}

// normalizeHost converts the host in a request to the form of a virtual host's domain. With redirection, a route
// configuration is for one port, so normalizeHost removes the port.
func (v proxyView) normalizeHost(host string) string {
	host = strings.ToLower(host)
	if v.p.Interception == None {
		return host
	}
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		return host[:i]
	}
	return host
}

// domainIndex finds the virtual host for a host by Envoy's rules: exact domains first, then the longest wildcard.
type domainIndex struct {
	byDomain map[string]int
	// suffixes lists the suffixes of the wildcard domains, longest first.
	suffixes []string
}

func indexDomains(hosts []plannedHost) domainIndex {
	out := domainIndex{byDomain: make(map[string]int, len(hosts))}
	for i, h := range hosts {
		for _, domain := range h.domains {
			domain = strings.ToLower(domain)
			out.byDomain[domain] = i
			if strings.HasPrefix(domain, "*") {
				out.suffixes = append(out.suffixes, domain[1:])
			}
		}
	}
	slices.SortFunc(out.suffixes, func(a, b string) int { return len(b) - len(a) })
	return out
}

func (x domainIndex) find(host string, made func(int) bool) (int, bool) {
	if i, ok := x.byDomain[host]; ok && made(i) {
		return i, true
	}
	for _, suffix := range x.suffixes {
		if i := x.byDomain["*"+suffix]; len(host) > len(suffix) && strings.HasSuffix(host, suffix) && made(i) {
			return i, true
		}
	}
	return 0, false
}
