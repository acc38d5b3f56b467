package xds

import (
	"maps"
	"slices"
	"strings"
)

// With VHDS, the virtual hosts of a route configuration are separate resources, so that one virtual host can change
// without the others. Envoy subscribes once, for all its route configurations. The server derives the virtual hosts to
// send from the route configurations that it has sent. Envoy accepts virtual hosts of unknown route configurations,
// drops them, and nevertheless reports them when it reconnects. The server therefore sends virtual hosts only after
// their route configuration, and removes them when the client unsubscribes from it. A route configuration that is new
// to a client has a provisional version until its virtual hosts are accepted. The server then sends it once more with
// its final version, which changes nothing in Envoy. A client that reconnects with the provisional version may lack
// virtual hosts that it reports, so the server sends all of them again.

// provisionalSuffix is the suffix of a provisional version.
const provisionalSuffix = "~"

// vhdsState is the state of one client's route configurations that use VHDS.
type vhdsState struct {
	routes map[string]bool // route configurations that were generated for the client with VHDS
	// sentRoutes contains the route configurations whose virtual hosts were sent on this stream, or are known from an
	// earlier stream.
	sentRoutes map[string]bool
	// newRoutes contains the route configurations that were new to the client when they were sent. The client had no
	// virtual hosts for them.
	newRoutes map[string]bool
	// accepted contains the route configurations that the client has in some version, with their virtual hosts. claimed
	// contains the versions that a reconnecting client reports, until the server has generated the route configuration.
	// A version that differs from the generated one does not count as accepted: it may be from another control plane
	// and contain inline virtual hosts, which have replaced the virtual hosts that Envoy still reports.
	accepted map[string]bool
	claimed  map[string]string
	// provisional contains the route configurations with a provisional version.
	provisional map[string]bool
}

func newVHDSState() vhdsState {
	return vhdsState{
		routes: map[string]bool{}, sentRoutes: map[string]bool{}, newRoutes: map[string]bool{}, accepted: map[string]bool{}, claimed: map[string]string{}, provisional: map[string]bool{},
	}
}

// SplitVirtualHostName splits name, the resource name of a virtual host, at its last slash. route is the name of the
// route configuration, and host the name of the virtual host. If there is no slash, route is empty.
func SplitVirtualHostName(name string) (route, host string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(0, i)], name[i+1:]
}

func routeOf(name string) string {
	route, _ := SplitVirtualHostName(name)
	return route
}

// addGenerated records which of the generated route configurations use VHDS.
func (a *vhdsState) addGenerated(routes []*Resource) {
	for _, r := range routes {
		if !r.UsesVHDS {
			delete(a.routes, r.Name)
			continue
		}
		a.routes[r.Name] = true
		if version, ok := a.claimed[r.Name]; ok && version == r.Version {
			a.accepted[r.Name] = true
		}
		delete(a.claimed, r.Name)
	}
}

// prepareRoute records that the server sends the route configuration r. It returns r with the version to send, which
// may be provisional.
func (a *vhdsState) prepareRoute(r *Resource) *Resource {
	if !r.UsesVHDS {
		return r
	}
	if !a.accepted[r.Name] && !a.provisional[r.Name] {
		delete(a.sentRoutes, r.Name)
		a.newRoutes[r.Name], a.provisional[r.Name] = true, true
	}
	if !a.provisional[r.Name] {
		return r
	}
	return &Resource{Name: r.Name, Version: r.Version + provisionalSuffix, Body: r.Body, UsesVHDS: true}
}

// addClaims records the route configurations that a reconnecting client reports.
func (a *vhdsState) addClaims(versions map[string]string) { maps.Copy(a.claimed, versions) }

// resetRefused records that the client rejected routes. If the client has no earlier version of a route configuration,
// it dropped the virtual hosts that the server sent afterwards. The server must send the virtual hosts again after the
// next version, even if that version was already sent.
func (a *vhdsState) resetRefused(routes []*Resource) {
	for _, r := range routes {
		if !a.accepted[r.Name] {
			delete(a.sentRoutes, r.Name)
			a.newRoutes[r.Name] = true
		}
	}
}

// addAccepted records that the client has the route configurations called names.
func (a *vhdsState) addAccepted(names []string) {
	for _, name := range names {
		a.accepted[name] = true
	}
}

// removeRoutes records that the client has unsubscribed from the route configurations called names.
func (a *vhdsState) removeRoutes(names []string) {
	for _, name := range names {
		delete(a.accepted, name)
		delete(a.provisional, name)
	}
}

// virtualHosts returns the client's subscription to virtual hosts, or nil before its first request for them.
func (c *connection) virtualHosts() *subscription {
	if sub, ok := c.subs[VirtualHostType]; ok && sub.requested {
		return sub
	}
	return nil
}

// answerHosts responds to a request for virtual hosts. The first request subscribes to the virtual hosts of all route
// configurations. The first request of a reconnecting client also lists the names that the client requested on demand.
func (c *connection) answerHosts(sub *subscription, a newSubscriptions, fresh bool) error {
	onDemand := c.addOnDemandNames(a.names.sorted())
	switch {
	case !fresh && onDemand:
		return c.answerOnDemand(sub)
	case !fresh:
		return c.answerMore(sub, a)
	}
	if err := c.followRoutes(); err != nil {
		return err
	}
	// Other virtual hosts that the client reports may belong to route configurations that it has not requested yet on
	// this stream. Their removal therefore waits.
	var unassigned []string
	for name := range sub.known.all {
		if !c.vhds.sentRoutes[routeOf(name)] {
			unassigned = append(unassigned, name)
		}
	}
	if len(unassigned) == 0 {
		return nil
	}
	c.removeLater(sub, unassigned, TypeScope{All: true})
	c.delayRemovals()
	return nil
}

// followRoutes sends the virtual hosts of the route configurations to which the client subscribes, and removes the
// virtual hosts of the others.
func (c *connection) followRoutes() error {
	hosts, routes := c.virtualHosts(), c.subs[RouteType]
	if hosts == nil || routes == nil || c.stream.protocol() != deltaProtocol {
		return nil
	}
	for _, route := range mapKeys(c.vhds.sentRoutes) {
		if !routes.names.has(route) {
			if err := c.removeVirtualHosts(hosts, route); err != nil {
				return err
			}
		}
	}
	c.clearUnusedRefusals(hosts, routes)
	if err := c.resolveOnDemandNames(); err != nil { // must precede the responses to on-demand names
		return err
	}
	for _, route := range routes.names.sorted() {
		if version, _ := routes.known.get(route); !c.vhds.routes[route] || c.vhds.sentRoutes[route] || version == unknownVersion {
			continue
		}
		if err := c.sendVirtualHosts(hosts, route); err != nil {
			return err
		}
	}
	return c.answerOnDemand(hosts)
}

// clearUnusedRefusals deletes refused virtual hosts, and those of unknown version, if the client no longer uses their
// route configuration. If the client subscribes to the route configuration again, it then receives all virtual hosts.
func (c *connection) clearUnusedRefusals(hosts, routes *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	useless := func(name string) bool {
		route := routeOf(name)
		return !routes.names.has(route) && !c.vhds.sentRoutes[route]
	}
	for name := range hosts.refused {
		if useless(name) {
			delete(hosts.refused, name)
		}
	}
	for name, version := range hosts.known.all {
		if version == unknownVersion && useless(name) {
			hosts.known.remove(name)
		}
	}
}

// removeVirtualHosts removes the virtual hosts of route from the client, which no longer has this route configuration.
// Envoy would otherwise continue to report them.
func (c *connection) removeVirtualHosts(hosts *subscription, route string) error {
	delete(c.vhds.sentRoutes, route)
	delete(c.vhds.newRoutes, route)
	return c.deliver(hosts, nil, hosts.knownHosts(route), false)
}

// sendVirtualHosts sends those virtual hosts of the route configuration route that the client lacks. If route has none,
// it sends a response without virtual hosts, because a client with a new route configuration waits for a response.
func (c *connection) sendVirtualHosts(hosts *subscription, route string) error {
	want, err := c.generate(hosts, true, []string{route})
	if err != nil {
		return nil
	}
	known := hosts.knownHosts(route)
	c.mu.Lock()
	for _, name := range known {
		// A removal may have been scheduled before the client requested the route configuration.
		delete(hosts.removing, name)
		// A client with a new route configuration waits for its virtual hosts, so send or remove each of them even if
		// the client reports it.
		if c.vhds.newRoutes[route] {
			hosts.known.set(name, unknownVersion)
			delete(hosts.refused, name)
		}
	}
	c.mu.Unlock()
	c.vhds.sentRoutes[route] = true
	delete(c.vhds.newRoutes, route)
	if len(want) == 0 && len(known) == 0 {
		return c.deliver(hosts, nil, []string{route + "/none"}, false)
	}
	return c.deliverHosts(hosts, hosts.diffOf(known, want))
}

// confirmRoutes handles the ACK or NACK of answer. It sends those route configurations with their final version of
// which the client has now accepted or rejected all virtual hosts.
func (c *connection) confirmRoutes(hosts *subscription, answer *sentResponse) error {
	unanswered := map[string]bool{}
	for _, b := range hosts.outstanding {
		for route := range b.routeNames() {
			unanswered[route] = true
		}
	}
	routes := c.subs[RouteType]
	for _, route := range mapKeys(answer.routeNames()) {
		if !c.vhds.provisional[route] || !c.vhds.sentRoutes[route] || unanswered[route] || !routes.names.has(route) {
			continue
		}
		delete(c.vhds.provisional, route)
		c.vhds.accepted[route] = true
		if err := c.update(routes, TypeScope{Names: []string{route}}); err != nil {
			return err
		}
	}
	return nil
}

// routeNames returns the names of the route configurations to which the virtual hosts in b belong.
func (b *sentResponse) routeNames() map[string]bool {
	routes := map[string]bool{}
	for _, r := range b.resources {
		routes[routeOf(r.Name)] = true
	}
	for _, name := range b.removed {
		routes[routeOf(name)] = true
	}
	return routes
}

// updateHosts sends the virtual hosts in scope t that the client lacks.
func (c *connection) updateHosts(t TypeScope) error {
	hosts := c.virtualHosts()
	if hosts == nil {
		return nil
	}
	t.All = t.All || hosts.generateErr != nil
	names := mapKeys(c.vhds.sentRoutes)
	if t.All {
		if len(names) == 0 {
			return nil
		}
		want, err := c.generate(hosts, true, names)
		if err != nil {
			return nil
		}
		return c.deliverHosts(hosts, hosts.diff(want, versionMap{}))
	}
	names = slices.DeleteFunc(slices.Clone(t.Names), func(name string) bool { return !c.vhds.sentRoutes[routeOf(name)] })
	slices.Sort(names)
	names = slices.Compact(names)
	want, err := c.generate(hosts, false, names)
	if err != nil {
		return nil
	}
	return c.deliverHosts(hosts, hosts.diffOf(names, want))
}

// deliverHosts sends one response for each route configuration: if one virtual host is invalid, Envoy rejects the whole
// response. All virtual hosts of a route configuration are in one response, because Envoy checks their domains
// together, and a domain may move from one virtual host to another.
func (c *connection) deliverHosts(hosts *subscription, d difference) error {
	if d.hasSingleRoute() {
		if err := c.deliver(hosts, d.send, d.removed, false); err != nil {
			return err
		}
		return c.deliverRetries(hosts, d)
	}
	byRoute := map[string]*difference{}
	of := func(name string) *difference {
		route := routeOf(name)
		if byRoute[route] == nil {
			byRoute[route] = &difference{}
		}
		return byRoute[route]
	}
	for _, r := range d.send {
		one := of(r.Name)
		one.send = append(one.send, r)
	}
	for _, name := range d.removed {
		one := of(name)
		one.removed = append(one.removed, name)
	}
	for _, route := range mapKeys(byRoute) {
		if err := c.deliver(hosts, byRoute[route].send, byRoute[route].removed, false); err != nil {
			return err
		}
	}
	return c.deliverRetries(hosts, d)
}

// hasSingleRoute reports whether all virtual hosts in d belong to one route configuration.
func (d difference) hasSingleRoute() bool {
	route := ""
	if len(d.send) > 0 {
		route = routeOf(d.send[0].Name)
	} else if len(d.removed) > 0 {
		route = routeOf(d.removed[0])
	}
	return !slices.ContainsFunc(d.send, func(r *Resource) bool { return routeOf(r.Name) != route }) &&
		!slices.ContainsFunc(d.removed, func(name string) bool { return routeOf(name) != route })
}

// handleHostsAnswer handles the ACK or, if refused is true, the NACK of answer, a response with virtual hosts.
func (c *connection) handleHostsAnswer(hosts *subscription, answer *sentResponse, refused bool) error {
	c.settleOnDemandNames(answer, refused)
	if refused {
		if err := c.retryHosts(hosts, answer); err != nil {
			return err
		}
		if err := c.answerOnDemand(hosts); err != nil {
			return err
		}
	}
	return c.confirmRoutes(hosts, answer)
}

// retryHosts immediately sends the virtual hosts of the rejected response again, in parts, because one invalid virtual
// host blocked all virtual hosts of its route configuration.
func (c *connection) retryHosts(hosts *subscription, refused *sentResponse) error {
	for _, route := range mapKeys(refused.routeNames()) {
		if !c.vhds.sentRoutes[route] {
			continue
		}
		want, err := c.generate(hosts, true, []string{route})
		if err != nil {
			return nil
		}
		if err := c.deliverHosts(hosts, hosts.diffOf(hosts.knownHosts(route), want)); err != nil {
			return err
		}
	}
	return nil
}

// knownHosts returns the names of those virtual hosts of the route configuration route that the client has, sorted.
func (s *subscription) knownHosts(route string) []string {
	var names []string
	for _, name := range s.known.sorted() {
		if routeOf(name) == route {
			names = append(names, name)
		}
	}
	return names
}
