package xds

import (
	"maps"
	"slices"
)

// wildcardName subscribes to all that the server has for the client.
const wildcardName = "*"

// handleDelta books what a delta request says, and answers what it asks.
func (c *connection) handleDelta(r *request) error {
	switch {
	case silent(r.typeURL):
		c.report(r)
		return nil
	case !served(r.typeURL):
		return c.answerNone(r)
	}
	if err := checkClaims(r); err != nil {
		return err
	}
	if r.typeURL == RouteType || r.typeURL == VirtualHostType {
		if err := c.arrive(r); err != nil {
			return err
		}
		if c.whole && r.typeURL == VirtualHostType {
			return nil
		}
	}
	c.mu.Lock()
	sub, fresh := c.subscription(r.typeURL)
	if fresh && r.typeURL == RouteType {
		// What came when it was no longer asked for is claimed too, and was dropped.
		r.initial, r.has = maps.Clone(r.initial), nil
		maps.DeleteFunc(r.initial, func(name, _ string) bool { return !slices.Contains(r.subscribe, name) })
	}
	accepted := sub.ackedAt
	answer := c.answered(sub, r)
	excess := sub.bound(r)
	a := sub.subscribeDelta(r, fresh)
	c.mu.Unlock()
	c.tell(sub, excess)
	c.settled(sub, answer, r, accepted)
	if p, ok := c.proxy.(Resumer); ok && fresh {
		p.Resume(r.typeURL, r.comesWith())
	}
	if r.typeURL == RouteType {
		if fresh {
			c.apart.came(r.initial)
		}
		c.apart.dropped(r.unsubscribe)
		return c.answerRoutes(sub, a, r, fresh)
	}
	if r.typeURL == VirtualHostType && answer != nil {
		if err := c.hostsAnswered(sub, answer, r.refusal != nil); err != nil {
			return err
		}
	}
	if err := c.answer(sub, a, fresh); err != nil {
		return err
	}
	return c.answerExcess(sub, excess)
}

// comesWith are the names of what the client has, sorted.
func (r *request) comesWith() []string {
	if r.has != nil {
		return r.has.names
	}
	return mapKeys(r.initial)
}

func (c *connection) answer(sub *subscription, a ask, fresh bool) error {
	switch {
	case !fresh && a.empty():
		return nil
	}
	if err := c.catchUp(sub.typeURL); err != nil {
		return err
	}
	switch {
	case sub.typeURL == VirtualHostType:
		return c.answerHosts(sub, a, fresh)
	case fresh:
		return c.answerFirst(sub, a)
	}
	return c.answerMore(sub, a)
}

// answerRoutes answers a request for route configurations, and has their virtual hosts follow.
func (c *connection) answerRoutes(sub *subscription, a ask, r *request, fresh bool) error {
	if err := c.answer(sub, a, fresh); err != nil {
		return err
	}
	if !fresh && a.empty() && len(r.unsubscribe) == 0 && r.refusal == nil {
		return nil
	}
	return c.followRoutes()
}

// ask is what a request newly asks for.
type ask struct {
	names    ledger              // to be sent, or said not to exist, whatever the client has
	doubtful map[string]struct{} // dropped by name while all are subscribed: the client cannot know whether it still has them
	wildcard bool
	resumed  bool // the client came with what it has
}

func (a ask) empty() bool { return a.names.len() == 0 && len(a.doubtful) == 0 && !a.wildcard }

// subscribeDelta applies a request's subscriptions.
func (s *subscription) subscribeDelta(r *request, fresh bool) ask {
	a := ask{doubtful: map[string]struct{}{}}
	var has map[string]string
	if fresh {
		has = r.initial
		a.resumed = len(r.initial) > 0
		if r.has != nil && s.known.len() == 0 {
			s.known.share(r.has)
		} else {
			s.known.adopt(s.pages, len(r.initial), maps.All(r.initial))
			s.known.settle(s.pages)
		}
		// An empty first request is the older way to ask for all; later on, emptiness means nothing.
		s.wildcard = len(r.subscribe) == 0 && impliesWildcard(s.typeURL)
		a.wildcard = s.wildcard
	}
	subscribe := r.subscribe // not changed: it may be that of others too
	if slices.Contains(subscribe, wildcardName) {
		a.wildcard = a.wildcard || !s.wildcard
		s.wildcard = true
		subscribe = slices.DeleteFunc(slices.Clone(subscribe), func(name string) bool { return name == wildcardName })
	}
	a.names = s.take(subscribe, r.asks, has)
	for _, name := range r.unsubscribe {
		if name == wildcardName {
			a.wildcard = false
			s.dropWildcard()
			continue
		}
		s.names.remove(name)
		a.names.remove(name)
		s.forget(name)
		if s.wildcard {
			a.doubtful[name] = struct{}{}
		}
	}
	s.names.settle(s.pages)
	return a
}

// take subscribes to names, and gives those of them that the client is to be told of: those that it did not come with.
// held is the page that holds these names, if there is one.
func (s *subscription) take(names []string, held *page, has map[string]string) (asked ledger) {
	first := s.names.len() == 0
	if !first || len(names) < pageSize {
		names = cloned(names)
	}
	if first && held != nil {
		s.names.share(held)
	} else {
		s.names.adopt(s.pages, len(names), unversioned(names))
		s.names.settle(s.pages)
	}
	if len(has) == 0 && first {
		return s.names.copy()
	}
	var others []string
	for _, name := range names {
		if _, there := has[name]; !there {
			others = append(others, name)
		}
	}
	asked.adopt(s.pages, len(others), unversioned(others))
	return asked
}

func (s *subscription) dropWildcard() {
	s.wildcard = false
	for name := range s.known.all {
		if !s.names.has(name) {
			s.forget(name)
		}
	}
}

// answerFirst answers the first request of a type on a stream. A client that comes back with all it should have is left
// in peace; any other gets an answer, even an empty one, because it waits for it.
func (c *connection) answerFirst(sub *subscription, a ask) error {
	forced := a.names.copy()
	if sub.typeURL == EndpointType {
		c.takeOwed(sub, &forced)
	}
	want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
	if err != nil {
		return nil // generate has told everybody; silence is better than an answer that takes resources away
	}
	d := sub.diff(want, forced)
	missing := without(a.names, want)
	if removedLast(sub.typeURL) {
		c.removeLater(sub, d.removed, Touched{All: true})
		if len(d.removed) > 0 {
			c.awaitQuiet()
		}
		d.removed = nil
	}
	removed := append(missing, d.removed...)
	return c.deliver(sub, d.send, removed, !a.resumed)
}

// answerMore answers a later request, which subscribes to more.
func (c *connection) answerMore(sub *subscription, a ask) error {
	all := a.wildcard || len(a.doubtful) > 0
	want, err := c.generate(sub, all, a.names.sorted())
	if err != nil {
		return nil
	}
	forced := a.names.copy()
	for name := range a.doubtful {
		forced.set(name, "")
	}
	missing := without(forced, want)
	d, _ := sub.lacking(want, forced)
	send := d.send
	if !a.wildcard {
		send = only(send, forced)
	}
	return c.deliver(sub, send, missing, true)
}

// without gives the names that no resource has, sorted.
func without(names ledger, resources []*Resource) []string {
	there := 0
	for _, r := range resources {
		if names.has(r.Name) {
			there++
		}
	}
	if there == names.len() {
		return nil
	}
	left := make(map[string]struct{}, names.len())
	for name := range names.all {
		left[name] = struct{}{}
	}
	for _, r := range resources {
		delete(left, r.Name)
	}
	return cloned(mapKeys(left))
}

func only(resources []*Resource, names ledger) []*Resource {
	var kept []*Resource
	for _, r := range resources {
		if names.has(r.Name) {
			kept = append(kept, r)
		}
	}
	return kept
}
