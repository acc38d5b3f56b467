package xds

import (
	"maps"
	"slices"
	"strings"
)

// A route configuration may leave its virtual hosts to resources of their own, so that one of them can change without
// the others. Envoy asks for them once, for all its route configurations: what it should have follows from the route
// configurations that it was sent. It accepts virtual hosts that it has no place for, drops them, and claims to have them
// when it comes back; so they are sent behind their route configuration only, and taken back when it is no longer asked
// for. A route configuration that is new to a client has a provisional version until its virtual hosts are accepted, and
// is then sent once more, which changes nothing in Envoy: a client that comes back with the provisional one may have got
// none of them, whatever it claims.

// provisional ends such a version.
const provisional = "~"

// MadeAs is the version that the resource was made with.
func (r *Resource) MadeAs() string { return strings.TrimSuffix(r.Version, provisional) }

// apart is what is known of the route configurations whose virtual hosts are sent apart.
type apart struct {
	routes map[string]bool // the route configurations that are made so, of those generated for the client
	placed map[string]bool // those whose virtual hosts the client was sent, or has from before
	fresh  map[string]bool // those that the client did not have when they were sent: they come without virtual hosts
	// accepted are those that the client has in some version, with the virtual hosts of before. claimed are the versions of
	// those that it came with: another version may be another control plane's, and whole, which Envoy had in the place of all
	// virtual hosts that it still claims.
	accepted map[string]bool
	claimed  map[string]string
	// unsettled are those whose version is provisional.
	unsettled map[string]bool
}

func newApart() apart {
	return apart{
		routes: map[string]bool{}, placed: map[string]bool{}, fresh: map[string]bool{}, accepted: map[string]bool{}, claimed: map[string]string{}, unsettled: map[string]bool{},
	}
}

// CutHost takes the name of a virtual host's resource apart, at its last slash: into the route configuration that it is of, and
// its own name. Without a slash it is of none.
func CutHost(name string) (route, host string) {
	i := strings.LastIndexByte(name, '/')
	return name[:max(0, i)], name[i+1:]
}

func routeOf(name string) string {
	route, _ := CutHost(name)
	return route
}

// note books which route configurations have their virtual hosts apart.
func (a *apart) note(routes []*Resource) {
	for _, r := range routes {
		if !r.HostsApart {
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

// sending books that a route configuration goes to the client, and gives what is to be sent.
func (a *apart) sending(r *Resource) *Resource {
	if !r.HostsApart {
		return r
	}
	if !a.accepted[r.Name] && !a.unsettled[r.Name] {
		delete(a.placed, r.Name)
		a.fresh[r.Name], a.unsettled[r.Name] = true, true
	}
	if !a.unsettled[r.Name] {
		return r
	}
	return &Resource{Name: r.Name, Version: r.Version + provisional, Body: r.Body, HostsApart: true}
}

// came books what a client says it has of route configurations when it comes back.
func (a *apart) came(versions map[string]string) { maps.Copy(a.claimed, versions) }

// refused books that the client refused route configurations. Where it has none from before it dropped what came behind, and
// behind the next version, which may be on its way already, all has to come again.
func (a *apart) refused(routes []*Resource) {
	for _, r := range routes {
		if !a.accepted[r.Name] {
			delete(a.placed, r.Name)
			a.fresh[r.Name] = true
		}
	}
}

// has books that the client has route configurations.
func (a *apart) has(names []string) {
	for _, name := range names {
		a.accepted[name] = true
	}
}

// dropped books that the client has no use for a route configuration any more.
func (a *apart) dropped(names []string) {
	for _, name := range names {
		delete(a.accepted, name)
		delete(a.unsettled, name)
	}
}

// hosts is the client's subscription to virtual hosts; nil before its first request for any.
func (c *connection) hosts() *subscription {
	if sub, ok := c.subs[VirtualHostType]; ok && sub.asked {
		return sub
	}
	return nil
}

// answerHosts answers a request for virtual hosts. The first one asks for those of all route configurations, and of a
// client that comes back besides for what requests named before.
func (c *connection) answerHosts(sub *subscription, a ask, fresh bool) error {
	asks := c.await(a.names.sorted())
	switch {
	case !fresh && asks:
		return c.answerWaiting(sub)
	case !fresh:
		return c.answerMore(sub, a)
	}
	if err := c.followRoutes(); err != nil {
		return err
	}
	// What is left over may belong to route configurations that the client has not asked for yet on this stream.
	var strangers []string
	for name := range sub.known.all {
		if !c.apart.placed[routeOf(name)] {
			strangers = append(strangers, name)
		}
	}
	if len(strangers) == 0 {
		return nil
	}
	c.removeLater(sub, strangers, Touched{All: true})
	c.awaitQuiet()
	return nil
}

// followRoutes brings the virtual hosts in line with the route configurations that the client has and asks for.
func (c *connection) followRoutes() error {
	hosts, routes := c.hosts(), c.subs[RouteType]
	if hosts == nil || routes == nil || c.wire.protocol() != deltaProtocol {
		return nil
	}
	for _, route := range mapKeys(c.apart.placed) {
		if !routes.names.has(route) {
			if err := c.takeBack(hosts, route); err != nil {
				return err
			}
		}
	}
	c.forgive(hosts, routes)
	if err := c.lookUp(); err != nil { // before what answers the names that wait
		return err
	}
	for _, route := range routes.names.sorted() {
		if version, _ := routes.known.get(route); !c.apart.routes[route] || c.apart.placed[route] || version == unsure {
			continue
		}
		if err := c.place(hosts, route); err != nil {
			return err
		}
	}
	return c.answerWaiting(hosts)
}

// forgive forgets what the client refused of route configurations that it has no use for any more, and what came along with
// that: should it want them again, it gets all of them.
func (c *connection) forgive(hosts, routes *subscription) {
	c.mu.Lock()
	defer c.mu.Unlock()
	useless := func(name string) bool {
		route := routeOf(name)
		return !routes.names.has(route) && !c.apart.placed[route]
	}
	for name := range hosts.refused {
		if useless(name) {
			delete(hosts.refused, name)
		}
	}
	for name, version := range hosts.known.all {
		if version == unsure && useless(name) {
			hosts.known.remove(name)
		}
	}
}

// takeBack removes the virtual hosts of a route configuration that the client no longer has, which it still counts.
func (c *connection) takeBack(hosts *subscription, route string) error {
	delete(c.apart.placed, route)
	delete(c.apart.fresh, route)
	return c.deliver(hosts, nil, hosts.knownOf(route), false)
}

// place sends all virtual hosts of a route configuration that the client lacks. A client that has just got the route
// configuration waits for them, even if there are none.
func (c *connection) place(hosts *subscription, route string) error {
	want, err := c.generate(hosts, true, []string{route})
	if err != nil {
		return nil
	}
	known := hosts.knownOf(route)
	c.mu.Lock()
	for _, name := range known {
		delete(hosts.removing, name) // it was nobody's until now
		if c.apart.fresh[route] {    // whether it has it or not, it gets it, or is told that there is none
			hosts.known.set(name, unsure)
			delete(hosts.refused, name)
		}
	}
	c.mu.Unlock()
	c.apart.placed[route] = true
	delete(c.apart.fresh, route)
	if len(want) == 0 && len(known) == 0 {
		return c.deliver(hosts, nil, []string{route + "/none"}, false)
	}
	return c.deliverHosts(hosts, hosts.diffOf(known, want))
}

// settleRoutes gives route configurations their versions, whose virtual hosts the client has answered.
func (c *connection) settleRoutes(hosts *subscription, answer *sent) error {
	unanswered := map[string]bool{}
	for _, b := range hosts.outstanding {
		for route := range b.routes() {
			unanswered[route] = true
		}
	}
	routes := c.subs[RouteType]
	for _, route := range mapKeys(answer.routes()) {
		if !c.apart.unsettled[route] || !c.apart.placed[route] || unanswered[route] || !routes.names.has(route) {
			continue
		}
		delete(c.apart.unsettled, route)
		c.apart.accepted[route] = true
		if err := c.update(routes, Touched{Names: []string{route}}); err != nil {
			return err
		}
	}
	return nil
}

// routes are those of the virtual hosts in a response.
func (b *sent) routes() map[string]bool {
	routes := map[string]bool{}
	for _, r := range b.resources {
		routes[routeOf(r.Name)] = true
	}
	for _, name := range b.removed {
		routes[routeOf(name)] = true
	}
	return routes
}

// updateHosts sends what the client lacks of the virtual hosts that were touched.
func (c *connection) updateHosts(t Touched) error {
	hosts := c.hosts()
	if hosts == nil {
		return nil
	}
	t.All = t.All || hosts.failed != nil
	names := mapKeys(c.apart.placed)
	if t.All {
		if len(names) == 0 {
			return nil
		}
		want, err := c.generate(hosts, true, names)
		if err != nil {
			return nil
		}
		return c.deliverHosts(hosts, hosts.diff(want, ledger{}))
	}
	names = slices.DeleteFunc(slices.Clone(t.Names), func(name string) bool { return !c.apart.placed[routeOf(name)] })
	slices.Sort(names)
	names = slices.Compact(names)
	want, err := c.generate(hosts, false, names)
	if err != nil {
		return nil
	}
	return c.deliverHosts(hosts, hosts.diffOf(names, want))
}

// deliverHosts sends one response for each route configuration: Envoy refuses a response whole, and checks the domains of
// each route configuration together, so that one which moves must be in one response.
func (c *connection) deliverHosts(hosts *subscription, d difference) error {
	if d.ofOneRoute() {
		if err := c.deliver(hosts, d.send, d.removed, false); err != nil {
			return err
		}
		return c.deliverAgain(hosts, d)
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
	return c.deliverAgain(hosts, d)
}

// ofOneRoute says whether all virtual hosts are of one route configuration.
func (d difference) ofOneRoute() bool {
	route := ""
	if len(d.send) > 0 {
		route = routeOf(d.send[0].Name)
	} else if len(d.removed) > 0 {
		route = routeOf(d.removed[0])
	}
	return !slices.ContainsFunc(d.send, func(r *Resource) bool { return routeOf(r.Name) != route }) &&
		!slices.ContainsFunc(d.removed, func(name string) bool { return routeOf(name) != route })
}

// hostsAnswered goes on after the client's answer.
func (c *connection) hostsAnswered(hosts *subscription, answer *sent, refused bool) error {
	c.answeredNames(answer, refused)
	if refused {
		if err := c.retryHosts(hosts, answer); err != nil {
			return err
		}
		if err := c.answerWaiting(hosts); err != nil {
			return err
		}
	}
	return c.settleRoutes(hosts, answer)
}

// retryHosts sends the good ones of a refused response again at once, in parts: the bad one among them has kept all
// virtual hosts of its route configuration away, or as they were.
func (c *connection) retryHosts(hosts *subscription, refused *sent) error {
	for _, route := range mapKeys(refused.routes()) {
		if !c.apart.placed[route] {
			continue
		}
		want, err := c.generate(hosts, true, []string{route})
		if err != nil {
			return nil
		}
		if err := c.deliverHosts(hosts, hosts.diffOf(hosts.knownOf(route), want)); err != nil {
			return err
		}
	}
	return nil
}

// knownOf gives the virtual hosts of a route configuration that the client has, sorted.
func (s *subscription) knownOf(route string) []string {
	var names []string
	for _, name := range s.known.sorted() {
		if routeOf(name) == route {
			names = append(names, name)
		}
	}
	return names
}
