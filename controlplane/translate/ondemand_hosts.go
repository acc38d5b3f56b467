package translate

import (
	"maps"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/snapshot"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// HeldHosts is which virtual hosts of one route configuration a proxy holds that asks for them as it needs them.
type HeldHosts struct {
	v     view
	route string
	plan  *hostPlan
	// leads are the resources that names lead to.
	leads map[string]string
	// planned are the virtual hosts of the mesh, by their places in the plan; unknown the hosts that it does not know. All
	// says that there are all of the mesh, and one for all unknown hosts.
	planned map[int]bool
	unknown map[string]bool
	all     bool
}

// Held says which virtual hosts the names of a route configuration lead to. A name is what comes behind the slash of a
// resource's name: that of a virtual host, or a host as a request names it. Where EnvoyFilters patch the routes, or if all is
// set, it is all of them. Nil: there are none of the route configuration to ask for.
func Held(s *snapshot.Snapshot, p *Proxy, route string, names []string, all bool) *HeldHosts {
	if !p.OnDemand {
		return nil
	}
	v := newView(s, p)
	plan := p.capture().hostPlan(v, route)
	if plan == nil {
		return nil
	}
	h := &HeldHosts{
		v: v, route: route, plan: plan, leads: make(map[string]string, len(names)), planned: map[int]bool{}, unknown: map[string]bool{},
		all: all || v.patchesOfRoutes(route) != "",
	}
	for _, name := range names {
		h.add(name)
	}
	h.addCovered()
	return h
}

// add finds what a name leads to.
func (h *HeldHosts) add(name string) {
	if i, ok := h.plan.byName[name]; ok && h.made(i) {
		h.planned[i], h.leads[name] = true, h.route+"/"+name
		return
	}
	domain := h.v.domainOf(name)
	if i, ok := h.plan.domains().find(domain, h.made); ok {
		h.planned[i], h.leads[name] = true, h.route+"/"+h.plan.hosts[i].name()
		return
	}
	switch {
	case h.all:
		h.leads[name] = h.route + "/" + h.v.otherHosts().GetName()
	// A pattern would be for others too, and the name of what is for all hosts would be taken for that later.
	case domain != "" && !strings.Contains(domain, "*") && !ForAllHosts(domain):
		h.unknown[domain], h.leads[name] = true, h.route+"/"+domain
	}
}

// made says whether a planned virtual host is there for this caller. Of a service there always is one.
func (h *HeldHosts) made(i int) bool {
	host := h.plan.hosts[i]
	if host.svc != nil && h.v.patches == nil {
		return true
	}
	r, err := h.v.hostApart(h.route, host)
	return r != nil || err != nil
}

// addCovered adds the hosts that a pattern of one which is held stands for: Envoy would take their requests to that one.
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

// Lead is the name of the resource that a name leads to; empty is none.
func (h *HeldHosts) Lead(name string) string { return h.leads[name] }

// Unknown counts the hosts that the mesh does not know.
func (h *HeldHosts) Unknown() int { return len(h.unknown) }

// All says whether there are all of the mesh, and one for all unknown hosts.
func (h *HeldHosts) All() bool { return h != nil && h.all }

// Names are those of the resources, unless there are all.
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

// Resources makes those that are wanted.
func (h *HeldHosts) Resources(wanted func(name string) bool) ([]*xds.Resource, error) {
	out, err := h.resources(wanted)
	h.v.noted(xds.VirtualHostType, func(name string) bool { return strings.HasPrefix(name, h.route+"/") && wanted(name) }, out)
	return out, err
}

func (h *HeldHosts) resources(wanted func(name string) bool) ([]*xds.Resource, error) {
	if h.all {
		all, err := h.v.allHostsApart(h.route, h.plan)
		return slices.DeleteFunc(slices.Clone(all), func(r *xds.Resource) bool { return !wanted(r.Name) }), err
	}
	var hosts []planned
	for _, i := range slices.Sorted(maps.Keys(h.planned)) {
		if host := h.plan.hosts[i]; wanted(h.route + "/" + host.name()) {
			hosts = append(hosts, host)
		}
	}
	out, err := h.v.plannedHostsApart(h.route, hosts)
	if err != nil {
		return nil, err
	}
	for _, domain := range slices.Sorted(maps.Keys(h.unknown)) {
		if !wanted(h.route + "/" + domain) {
			continue
		}
		r, err := h.v.unknownApart(h.route, domain)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// othersApart is what becomes of all unknown hosts; none where an EnvoyFilter takes it away.
func (v view) othersApart(route string) ([]*xds.Resource, error) {
	host := acceptable(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{v.otherHosts()}}).VirtualHosts[0]
	if host = v.patchHost(route, host); host == nil {
		v.patches.Take()
		return nil, nil
	}
	r, err := v.apartResource(route, host)
	return []*xds.Resource{r}, err
}

// ForAllHosts says whether a virtual host of that name is the one for all hosts that the mesh does not know.
func ForAllHosts(name string) bool { return name == allowAny || name == blockAll }

// unknownKey is all that the virtual host of an unknown host depends on beside the scope.
type unknownKey struct{ route, domain string }

// unknownApart is what becomes of one.
func (v view) unknownApart(route, domain string) (*xds.Resource, error) {
	return v.scope.Cache().Get(unknownKey{route, domain}, func() (*xds.Resource, error) {
		host := v.otherHosts()
		host.Name, host.Domains = domain, []string{domain}
		return v.apartResource(route, host)
	})
}

// unhurried has the routes of a proxy that asks for virtual hosts take no notice of what bounds the wait for these.
func (v view) unhurried(host *routev3.VirtualHost) *routev3.VirtualHost {
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

// domainOf is a host as virtual hosts have it: where routes are for one port, what a request says of it does not count.
func (v view) domainOf(host string) string {
	host = strings.ToLower(host)
	if v.p.Interception == None {
		return host
	}
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		return host[:i]
	}
	return host
}

// domainIndex finds the virtual host for a host as Envoy does.
type domainIndex struct {
	byDomain map[string]int
	// suffixes are those of patterns, the longest first.
	suffixes []string
}

func indexDomains(hosts []planned) domainIndex {
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
