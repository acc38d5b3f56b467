package xds

import (
	"slices"
	"strings"
	"time"
)

// A client may ask for a virtual host as a request needs it, by the host that the request names, which need not be the name
// of a resource: the request waits until a response says which of its resources that host leads to (an alias), or that none
// does. Envoy asks for a name once on a stream, and again on the next one as long as it lives; it bounds the wait only by
// its own timeouts, and takes a removal for no answer. So each name that was asked for is answered, also if the client
// refuses what it was to get.

// maxWaiting bounds the names that wait to be answered. It is reached only by a client that asks for what belongs to none of
// its route configurations.
const maxWaiting = 10_000

// Asker is a Proxy whose client asks for virtual hosts as it needs them.
type Asker interface {
	// Ask is called with such names (the route configuration, a slash, and the host as a request names it): the client is
	// to have what they lead to from now on. It gives the names of the resources that they lead to, for those that lead
	// anywhere, and what of other types the client is to have before it gets these.
	Ask(state State, names []string) (leads map[string]string, before Touches)
}

// waiting is a name whose request waits for an answer.
type waiting struct {
	lead string // the resource that it leads to; empty is none
	// nonce is of the response that answers it, and empty before there is one.
	nonce string
}

// await books that requests wait for names, as far as the client's Proxy can tell what they lead to.
func (c *connection) await(names []string) bool {
	if _, ok := c.proxy.(Asker); !ok {
		return false
	}
	if c.waiting == nil {
		c.waiting = map[string]*waiting{}
	}
	for _, name := range names {
		if len(c.waiting) < maxWaiting || c.waiting[name] != nil {
			c.waiting[strings.Clone(name)] = &waiting{}
		}
	}
	return true
}

// unanswered are the names that no response answers yet, sorted.
func (c *connection) unanswered() []string {
	var names []string
	for name, w := range c.waiting {
		if w.nonce == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lookUp asks what the unanswered names lead to, and sends what has to be there before. What is sent of virtual hosts from
// then on answers the names that lead to it.
func (c *connection) lookUp() error {
	names := c.unanswered()
	if len(names) == 0 {
		return nil
	}
	leads, before := c.ask(names)
	for _, name := range names {
		c.waiting[name].lead = leads[name]
	}
	c.note(before, time.Now())
	return c.catchUp(VirtualHostType)
}

// ask turns a panic into names that lead nowhere: what breaks one client's configuration must not take the mesh down.
func (c *connection) ask(names []string) (leads map[string]string, before Touches) {
	defer func() {
		if p := recover(); p != nil {
			c.log.Error("cannot tell what a client asks for", "panic", p)
		}
	}()
	return c.proxy.(Asker).Ask(c.state, names)
}

// answerWaiting answers all names whose route configuration the client has: with what they lead to, whether the client has
// that already or not, and with what else has to come with it.
func (c *connection) answerWaiting(hosts *subscription) error {
	if err := c.lookUp(); err != nil {
		return err
	}
	byRoute := map[string][]string{}
	for _, name := range c.unanswered() {
		if route := routeOf(name); c.apart.placed[route] {
			byRoute[route] = append(byRoute[route], name)
		}
	}
	for _, route := range mapKeys(byRoute) {
		if err := c.answerNames(hosts, route, byRoute[route]); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) answerNames(hosts *subscription, route string, names []string) error {
	want, err := c.generate(hosts, true, []string{route})
	if err != nil {
		return nil // what is sent when it can be made answers them
	}
	d := hosts.diffOf(hosts.knownOf(route), want)
	there := make(map[string]*Resource, len(want))
	for _, r := range want {
		there[r.Name] = r
	}
	d.send = slices.Clone(d.send)
	var nowhere []string
	for _, name := range names {
		r := there[c.waiting[name].lead]
		switch {
		case r == nil || hosts.condemns(r):
			nowhere = append(nowhere, name)
		case !d.sends(r):
			d.send = append(d.send, r)
		}
	}
	if err := c.deliverHosts(hosts, d); err != nil || len(nowhere) == 0 {
		return err
	}
	return c.dispatch(hosts, &response{nowhere: nowhere})
}

func (d difference) sends(r *Resource) bool {
	return slices.Contains(d.send, r) || slices.ContainsFunc(d.again, func(part []*Resource) bool { return slices.Contains(part, r) })
}

// condemns says whether the client refused this very version of a resource by itself.
func (s *subscription) condemns(r *Resource) bool {
	refused, ok := s.refused[r.Name]
	return ok && refused.condemned && refused.version == r.Version
}

// answering has a response of virtual hosts answer the unanswered names that lead to them, or nowhere.
func (c *connection) answering(r *response) {
	byLead := map[string][]string{}
	for _, name := range c.unanswered() {
		if lead := c.waiting[name].lead; lead != "" {
			byLead[lead] = append(byLead[lead], name)
		}
	}
	answered := slices.Clone(r.nowhere)
	r.resources = slices.Clone(r.resources) // many clients share the list
	for i, res := range r.resources {
		if names := byLead[res.Name]; len(names) > 0 {
			r.resources[i] = &Resource{Name: res.Name, Version: res.Version, Body: res.Body, Aliases: names}
			answered = append(answered, names...)
		}
	}
	for _, name := range answered {
		if w := c.waiting[name]; w != nil { // and not one too many
			w.nonce = r.nonce
		}
	}
}

// answeredNames books what became of the names that a response answered: they no longer wait, or have to be answered again.
func (c *connection) answeredNames(answer *sent, refused bool) {
	for name, w := range c.waiting {
		switch {
		case w.nonce != answer.nonce:
		case refused:
			w.nonce = ""
		default:
			delete(c.waiting, name)
		}
	}
}
