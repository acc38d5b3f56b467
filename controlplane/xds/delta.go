package xds

import (
	"maps"
	"slices"
)

// wildcardName is the name with which a client subscribes to all resources that the server has for it.
const wildcardName = "*"

// handleDelta records the ACK or NACK and the subscriptions of the delta request r, and responds to it.
func (c *connection) handleDelta(r *request) error {
	switch {
	case isReport(r.typeURL):
		c.handleReport(r)
		return nil
	case !c.isServed(r.typeURL):
		return c.answerUnserved(r)
	}
	if err := checkClaims(r, c.availableBytes(r.initialPage)); err != nil {
		return err
	}
	if r.typeURL == RouteType || r.typeURL == VirtualHostType {
		if err := c.checkVHDSClient(r); err != nil {
			return err
		}
		if c.vhdsDisabled && r.typeURL == VirtualHostType {
			return nil
		}
	}
	c.mu.Lock()
	sub, fresh := c.subscription(r.typeURL)
	if fresh && r.typeURL == RouteType {
		// Clients also report route configurations that arrived after they had unsubscribed from them. Envoy has
		// dropped these, so ignore them.
		r.initial, r.initialPage = maps.Clone(r.initial), nil
		maps.DeleteFunc(r.initial, func(name, _ string) bool { return !slices.Contains(r.subscribe, name) })
	}
	answer := c.settleResponse(sub, r)
	excess, invalid := sub.limitNames(r, c.availableBytes(r.subscribePage), c.validName(r.typeURL))
	a := sub.subscribeDelta(r, fresh)
	c.mu.Unlock()
	c.charge() // charge before sending, because sending may block
	if r.typeURL == VirtualHostType {
		excess = append(excess, invalid...)
	}
	c.reportExcess(sub, excess)
	c.retryExtensions(sub, answer, r)
	if fresh && c.hooks.Resume != nil {
		c.hooks.Resume(r.typeURL, r.initialNames())
	}
	if r.typeURL == RouteType {
		if fresh {
			c.vhds.addClaims(r.initial)
		}
		c.vhds.removeRoutes(r.unsubscribe)
		if err := c.answerRoutes(sub, a, r, fresh); err != nil {
			return err
		}
		return c.answerInvalid(sub, invalid)
	}
	if r.typeURL == VirtualHostType && answer != nil {
		if err := c.handleHostsAnswer(sub, answer, r.errorDetail != nil); err != nil {
			return err
		}
	}
	if err := c.answerDelta(sub, a, fresh); err != nil {
		return err
	}
	if err := c.answerInvalid(sub, invalid); err != nil {
		return err
	}
	return c.answerExcess(sub, excess)
}

// initialNames returns the names of the resources that the client reports to have, sorted.
func (r *request) initialNames() []string {
	if r.initialPage != nil {
		return r.initialPage.names
	}
	return mapKeys(r.initial)
}

func (c *connection) answerDelta(sub *subscription, a newSubscriptions, fresh bool) error {
	switch {
	case !fresh && a.isEmpty():
		return nil
	}
	if err := c.sendClustersBefore(sub.typeURL); err != nil {
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

// answerRoutes responds to a request for route configurations, and then sends their virtual hosts.
func (c *connection) answerRoutes(sub *subscription, a newSubscriptions, r *request, fresh bool) error {
	if err := c.answerDelta(sub, a, fresh); err != nil {
		return err
	}
	if !fresh && a.isEmpty() && len(r.unsubscribe) == 0 && r.errorDetail == nil {
		return nil
	}
	return c.followRoutes()
}

// newSubscriptions contains the resources to which a request newly subscribes.
type newSubscriptions struct {
	names versionMap // resources to send or to report as nonexistent, even if the client has them
	// uncertain contains names from which the client unsubscribed while it also subscribes to the wildcard. The client
	// cannot determine whether it still has these resources.
	uncertain map[string]struct{}
	wildcard  bool
	resumed   bool // the client reports resources that it received on an earlier stream
}

func (a newSubscriptions) isEmpty() bool {
	return a.names.len() == 0 && len(a.uncertain) == 0 && !a.wildcard
}

// subscribeDelta applies the subscriptions of r and returns the new ones. If fresh is set, r is the first request for
// the type, and its initial resources become known.
func (s *subscription) subscribeDelta(r *request, fresh bool) newSubscriptions {
	a := newSubscriptions{uncertain: map[string]struct{}{}}
	var has map[string]string
	if fresh {
		has = r.initial
		a.resumed = len(r.initial) > 0
		if r.initialPage != nil && s.known.len() == 0 {
			s.known.share(r.initialPage)
		} else {
			s.known.addAll(s.pages, len(r.initial), maps.All(r.initial))
			s.known.compact(s.pages)
			s.known.cloneStrings()
		}
		// A first request without names is the legacy form of a wildcard subscription. In later requests an empty list
		// does not change the subscription.
		s.wildcard = len(r.subscribe) == 0 && impliesWildcard(s.typeURL)
		a.wildcard = s.wildcard
	}
	subscribe := r.subscribe // must not be modified, because a page may share the slice
	if slices.Contains(subscribe, wildcardName) {
		a.wildcard = a.wildcard || !s.wildcard
		s.wildcard = true
		subscribe = slices.DeleteFunc(slices.Clone(subscribe), func(name string) bool { return name == wildcardName })
	}
	a.names = s.subscribeNames(subscribe, r.subscribePage, has)
	for _, name := range r.unsubscribe {
		if name == wildcardName {
			a.wildcard = false
			s.dropWildcard()
			continue
		}
		s.names.remove(name)
		a.names.remove(name)
		s.removeResource(name)
		if s.wildcard {
			a.uncertain[name] = struct{}{}
		}
	}
	s.names.compact(s.pages)
	return a
}

// subscribeNames subscribes to names. page is the cached page with these names, or nil. has contains the resources that
// the client reports. subscribeNames returns the names that are not in has: they need a response.
func (s *subscription) subscribeNames(names []string, page *versionPage, has map[string]string) (unclaimed versionMap) {
	first := s.names.len() == 0
	if !first || len(names) < pageSize {
		names = cloneNames(names)
	}
	if first && page != nil {
		s.names.share(page)
	} else {
		s.names.addAll(s.pages, len(names), withoutVersions(names))
		s.names.compact(s.pages)
		if first && len(names) >= pageSize { // in this case, the names were not cloned above
			s.names.cloneStrings()
		}
	}
	if len(has) == 0 && first {
		return s.names.copy()
	}
	var missing []string
	for _, name := range names {
		if _, claimed := has[name]; !claimed {
			missing = append(missing, name)
		}
	}
	unclaimed.addAll(s.pages, len(missing), withoutVersions(missing))
	return unclaimed
}

func (s *subscription) dropWildcard() {
	s.wildcard = false
	for name := range s.known.all {
		if !s.names.has(name) {
			s.removeResource(name)
		}
	}
}

// answerFirst responds to the first request for a type on a stream. It sends no response to a reconnecting client that
// has all resources. All other clients wait for a response, so answerFirst sends one even if it is empty.
func (c *connection) answerFirst(sub *subscription, a newSubscriptions) error {
	forced := a.names.copy()
	if sub.typeURL == EndpointType {
		c.addOwedAssignments(sub, &forced)
	}
	want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
	if err != nil {
		return nil // generate has logged the error; an incomplete response would remove resources from the client
	}
	d := sub.diff(want, forced)
	missing := namesWithoutResource(a.names, want)
	if isRemovedLast(sub.typeURL) {
		c.removeLater(sub, d.removed, TypeScope{All: true})
		if len(d.removed) > 0 {
			c.delayRemovals()
		}
		d.removed = nil
	}
	removed := append(missing, d.removed...)
	return c.deliver(sub, d.send, removed, !a.resumed)
}

// answerMore responds to a request that subscribes to more resources of a type.
func (c *connection) answerMore(sub *subscription, a newSubscriptions) error {
	all := a.wildcard || len(a.uncertain) > 0
	want, err := c.generate(sub, all, a.names.sorted())
	if err != nil {
		return nil
	}
	forced := a.names.copy()
	for name := range a.uncertain {
		forced.set(name, "")
	}
	missing := namesWithoutResource(forced, want)
	d, _ := sub.findMissing(want, forced)
	send := d.send
	if !a.wildcard {
		send = selectNamed(send, forced)
	}
	return c.deliver(sub, send, missing, true)
}

// namesWithoutResource returns those of names that none of resources has, sorted.
func namesWithoutResource(names versionMap, resources []*Resource) []string {
	found := 0
	for _, r := range resources {
		if names.has(r.Name) {
			found++
		}
	}
	if found == names.len() {
		return nil
	}
	left := make(map[string]struct{}, names.len())
	for name := range names.all {
		left[name] = struct{}{}
	}
	for _, r := range resources {
		delete(left, r.Name)
	}
	return cloneNames(mapKeys(left))
}

func selectNamed(resources []*Resource, names versionMap) []*Resource {
	var kept []*Resource
	for _, r := range resources {
		if names.has(r.Name) {
			kept = append(kept, r)
		}
	}
	return kept
}
