package xds

import (
	"slices"
	"strings"
	"time"
)

// Envoy can request a virtual host on demand, when the first HTTP request needs it. The requested name contains the
// host of the HTTP request, and can differ from the name of the resource. Envoy delays the HTTP request until a
// response maps the name to a resource (an alias) or reports that there is none. Envoy requests each name once per
// stream. Only Envoy's own timeouts limit the wait, and Envoy does not accept a removal as the response. The server
// therefore responds to each requested name, even if the client rejects the resource.

// maxOnDemandNames limits the names of one stream that wait for a response. The server ignores further names. A client
// reaches the limit only if it requests names of unknown route configurations.
const maxOnDemandNames = 10_000

// onDemandName is a requested name that waits for a response.
type onDemandName struct {
	target string // the resource to which the name resolves; empty if there is none
	// nonce is the nonce of the response for the name; empty before that response is sent.
	nonce string
}

// addOnDemandNames records that HTTP requests wait for names. It returns false if the client's Proxy cannot resolve
// names.
func (c *connection) addOnDemandNames(names []string) bool {
	if c.hooks.ResolveOnDemand == nil {
		return false
	}
	if c.onDemandNames == nil {
		c.onDemandNames = map[string]*onDemandName{}
	}
	for _, name := range names {
		if len(c.onDemandNames) < maxOnDemandNames || c.onDemandNames[name] != nil {
			c.onDemandNames[strings.Clone(name)] = &onDemandName{}
		}
	}
	return true
}

// unansweredNames returns the on-demand names for which no response was sent, sorted.
func (c *connection) unansweredNames() []string {
	var names []string
	for name, w := range c.onDemandNames {
		if w.nonce == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// resolveOnDemandNames resolves the on-demand names for which no response was sent, and sends the clusters that must
// precede their virtual hosts. The next response that contains one of these virtual hosts then also answers the names
// that resolve to it.
func (c *connection) resolveOnDemandNames() error {
	names := c.unansweredNames()
	if len(names) == 0 {
		return nil
	}
	targets, before := c.callResolveOnDemand(names)
	for _, name := range names {
		c.onDemandNames[name].target = targets[name]
	}
	c.markDirty(before, time.Now())
	return c.sendClustersBefore(VirtualHostType)
}

// callResolveOnDemand calls Hooks.ResolveOnDemand. After a panic, it treats the names as unresolvable: an error that
// one client's configuration triggers must not crash the control plane.
func (c *connection) callResolveOnDemand(names []string) (targets map[string]string, before PushScope) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("resolving on-demand names failed", "panic", p)
		}
	}()
	return c.hooks.ResolveOnDemand(c.state, names)
}

// answerOnDemand responds to all on-demand names that belong to route configurations of the client. It sends the
// virtual hosts to which the names resolve, even if the client has them. The response for a route configuration also
// contains all other changes of its virtual hosts.
func (c *connection) answerOnDemand(hosts *subscription) error {
	if err := c.resolveOnDemandNames(); err != nil {
		return err
	}
	byRoute := map[string][]string{}
	for _, name := range c.unansweredNames() {
		if route := routeOf(name); c.vhds.sentRoutes[route] {
			byRoute[route] = append(byRoute[route], name)
		}
	}
	for _, route := range mapKeys(byRoute) {
		if err := c.answerOnDemandRoute(hosts, route, byRoute[route]); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) answerOnDemandRoute(hosts *subscription, route string, names []string) error {
	want, err := c.generate(hosts, true, []string{route})
	if err != nil {
		return nil // the next successful update responds to the names
	}
	d := hosts.diffOf(hosts.knownHosts(route), want)
	wantByName := make(map[string]*Resource, len(want))
	for _, r := range want {
		wantByName[r.Name] = r
	}
	d.send = slices.Clone(d.send)
	var nowhere []string
	for _, name := range names {
		r := wantByName[c.onDemandNames[name].target]
		switch {
		case r == nil || hosts.isRefusedAlone(r):
			nowhere = append(nowhere, name)
		case !d.contains(r):
			d.send = append(d.send, r)
		}
	}
	if err := c.deliverHosts(hosts, d); err != nil || len(nowhere) == 0 {
		return err
	}
	return c.dispatch(hosts, &response{notFound: nowhere})
}

func (d difference) contains(r *Resource) bool {
	return slices.Contains(d.send, r) || slices.ContainsFunc(d.retries, func(part []*Resource) bool { return slices.Contains(part, r) })
}

// isRefusedAlone reports whether the client rejected this version of r in a response that contained no other resource.
func (s *subscription) isRefusedAlone(r *Resource) bool {
	refused, ok := s.refused[r.Name]
	return ok && refused.alone && refused.version == r.Version
}

// attachOnDemandAnswers adds aliases to the virtual hosts in r: the on-demand names that resolve to them. It records
// that r answers these names, and the names in r.notFound.
func (c *connection) attachOnDemandAnswers(r *response) {
	byTarget := map[string][]string{}
	for _, name := range c.unansweredNames() {
		if target := c.onDemandNames[name].target; target != "" {
			byTarget[target] = append(byTarget[target], name)
		}
	}
	answered := slices.Clone(r.notFound)
	r.resources = slices.Clone(r.resources) // clients share the slice, so it is copied
	for i, res := range r.resources {
		if names := byTarget[res.Name]; len(names) > 0 {
			r.resources[i] = &Resource{Name: res.Name, Version: res.Version, Body: res.Body, Aliases: names}
			answered = append(answered, names...)
		}
	}
	for _, name := range answered {
		if w := c.onDemandNames[name]; w != nil { // nil if the name exceeded maxOnDemandNames
			w.nonce = r.nonce
		}
	}
}

// settleOnDemandNames handles the ACK or NACK of answer. After an ACK, the on-demand names in answer no longer wait.
// After a NACK, they need another response.
func (c *connection) settleOnDemandNames(answer *sentResponse, refused bool) {
	for name, w := range c.onDemandNames {
		switch {
		case w.nonce != answer.nonce:
		case refused:
			w.nonce = ""
		default:
			delete(c.onDemandNames, name)
		}
	}
}
