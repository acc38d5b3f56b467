package xds

import "slices"

// handleSotw records the ACK or NACK and the subscriptions of the SotW request r, and responds to it.
func (c *connection) handleSotw(r *request) error {
	switch {
	case isReport(r.typeURL):
		c.handleReport(r)
		return nil
	case !c.isServed(r.typeURL):
		return c.answerUnserved(r)
	}
	c.mu.Lock()
	sub, fresh := c.subscription(r.typeURL)
	excess, invalid := sub.limitNames(r, c.availableBytes(nil), c.validName(r.typeURL))
	excess = append(excess, invalid...) // a SotW response cannot report names as nonexistent
	// Only the request that ACKs or NACKs the last response contains the client's current subscription. A request with
	// an older nonce is outdated: the client will still reply to the last response.
	current := r.nonce == "" || (sub.last != nil && r.nonce == sub.last.nonce)
	answer := c.settleResponse(sub, r)
	if !fresh && !current {
		sub.removeUnlisted(r.names)
		c.mu.Unlock()
		c.retryExtensions(sub, answer, r)
		return nil
	}
	added, changed := sub.subscribeSotw(r)
	c.mu.Unlock()
	c.charge() // charge before sending, because sending may block
	c.reportExcess(sub, excess)
	c.retryExtensions(sub, answer, r)
	switch {
	case fresh || r.nonce == "":
		return c.answerSotw(sub, sub.names.sorted(), true)
	case impliesWildcard(sub.typeURL) && changed:
		return c.answerSotw(sub, nil, false)
	case len(added) > 0:
		return c.answerSotw(sub, added, false)
	}
	return nil
}

// removeUnlisted removes names from the subscription that are not in listed, the names of an outdated request. If a
// later request lists such a name again, the server then sends the resource again: the client has dropped it in between
// and waits for it.
func (s *subscription) removeUnlisted(listed []string) {
	if impliesWildcard(s.typeURL) {
		return
	}
	var unlisted []string
	listedSet := make(map[string]bool, len(listed))
	for _, name := range listed {
		listedSet[name] = true
	}
	for name := range s.names.all {
		if !listedSet[name] {
			unlisted = append(unlisted, name)
		}
	}
	for _, name := range unlisted {
		s.names.remove(name)
		s.removeResource(name)
	}
}

// subscribeSotw replaces the subscription by the names in r. It returns the names that are new, and whether the
// subscription changed.
func (s *subscription) subscribeSotw(r *request) (added []string, changed bool) {
	var names versionMap
	wildcard := slices.Contains(r.names, wildcardName) ||
		(len(r.names) == 0 && !s.namedOnce && impliesWildcard(s.typeURL))
	for _, name := range r.names {
		if name == wildcardName {
			continue
		}
		names.set(name, "")
		if !s.names.has(name) {
			added = append(added, name)
		}
	}
	s.namedOnce = s.namedOnce || len(r.names) > 0
	changed = wildcard != s.wildcard || len(added) > 0 || names.len() != s.names.len()
	for name := range s.names.all {
		if !names.has(name) && !wildcard && !impliesWildcard(s.typeURL) {
			s.removeResource(name)
		}
	}
	names.compact(s.pages)
	s.names, s.wildcard = names, wildcard
	return added, changed
}

// answerSotw sends the resources called names. If responses of the type must be complete (impliesWildcard), it sends
// all subscribed resources, even if there are none.
func (c *connection) answerSotw(sub *subscription, names []string, evenEmpty bool) error {
	if err := c.sendClustersBefore(sub.typeURL); err != nil {
		return err
	}
	wildcard := sub.wildcard
	if impliesWildcard(sub.typeURL) {
		names = sub.names.sorted()
		evenEmpty = true
	}
	want, err := c.generate(sub, wildcard, names)
	if err != nil {
		return nil
	}
	return c.deliver(sub, want, nil, evenEmpty)
}

// updateSotw sends the changes of one type. If responses of the type must be complete (impliesWildcard), it sends the
// whole type, because the client removes resources that a response omits. Responses contain removed clusters until
// other types no longer refer to them.
func (c *connection) updateSotw(sub *subscription, t TypeScope) error {
	if !impliesWildcard(sub.typeURL) {
		d, err := c.compare(sub, t)
		if err != nil {
			return nil
		}
		return c.updateNamedSotw(sub, d)
	}
	want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
	if err != nil {
		return nil
	}
	d := sub.diff(want, versionMap{})
	switch {
	case len(d.send) == 0 && len(d.removed) == 0:
		return nil
	case !isRemovedLast(sub.typeURL) || len(d.removed) == 0:
		c.removeLater(sub, nil, TypeScope{All: true})
		return c.deliver(sub, want, nil, true)
	}
	c.removeLater(sub, d.removed, TypeScope{All: true})
	if len(d.send) == 0 { // removeSotw sends the whole type later
		return nil
	}
	return c.deliver(sub, slices.Concat(want, sub.resourcesToRemove()), nil, true)
}

// resourcesToRemove returns those resources of the last full response whose removal is scheduled.
func (s *subscription) resourcesToRemove() []*Resource {
	var leaving []*Resource
	for _, r := range s.lastFullResponse {
		if _, ok := s.removing[r.Name]; ok {
			leaving = append(leaving, r)
		}
	}
	return leaving
}

// removeSotw sends all resources of a type except those whose removal is scheduled.
func (c *connection) removeSotw(sub *subscription) error {
	want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
	if err != nil {
		return nil
	}
	c.mu.Lock()
	clear(sub.removing)
	c.mu.Unlock()
	return c.deliver(sub, want, nil, true)
}

func (c *connection) updateNamedSotw(sub *subscription, d difference) error {
	c.mu.Lock()
	for _, name := range d.removed {
		// A SotW response of this type cannot remove a resource. The client drops it together with the resources that
		// refer to it.
		sub.removeResource(name)
	}
	c.mu.Unlock()
	if err := c.deliver(sub, d.send, nil, false); err != nil {
		return err
	}
	return c.deliverRetries(sub, d)
}
