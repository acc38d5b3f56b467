package xds

import "slices"

// handleSotw books what a state-of-the-world request says, and answers what it asks.
func (c *connection) handleSotw(r *request) error {
	switch {
	case silent(r.typeURL):
		c.report(r)
		return nil
	case !served(r.typeURL):
		return c.answerNone(r)
	}
	c.mu.Lock()
	sub, fresh := c.subscription(r.typeURL)
	excess := sub.bound(r)
	// Only the answer to the last response says what the client wants now; an older one is overtaken by another that
	// is on its way.
	current := r.nonce == "" || (sub.last != nil && r.nonce == sub.last.nonce)
	accepted := sub.ackedAt
	answer := c.answered(sub, r)
	if !fresh && !current {
		sub.dropped(r.names)
		c.mu.Unlock()
		c.settled(sub, answer, r, accepted)
		return nil
	}
	added, changed := sub.subscribeSotw(r)
	c.mu.Unlock()
	c.tell(sub, excess)
	c.settled(sub, answer, r, accepted)
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

// dropped takes from the subscription what an overtaken request no longer lists: a client that lists it again in its next
// one has let go of it in between, and waits for it.
func (s *subscription) dropped(listed []string) {
	if impliesWildcard(s.typeURL) {
		return
	}
	var gone []string
	for name := range s.names.all {
		if !slices.Contains(listed, name) {
			gone = append(gone, name)
		}
	}
	for _, name := range gone {
		s.names.remove(name)
		s.forget(name)
	}
}

// subscribeSotw replaces the subscription by what a request lists, and gives the names that it did not have.
func (s *subscription) subscribeSotw(r *request) (added []string, changed bool) {
	var names ledger
	wildcard := slices.Contains(r.names, wildcardName) ||
		(len(r.names) == 0 && !s.named && impliesWildcard(s.typeURL))
	for _, name := range r.names {
		if name == wildcardName {
			continue
		}
		names.set(name, "")
		if !s.names.has(name) {
			added = append(added, name)
		}
	}
	s.named = s.named || len(r.names) > 0
	changed = wildcard != s.wildcard || len(added) > 0 || names.len() != s.names.len()
	for name := range s.names.all {
		if !names.has(name) && !wildcard && !impliesWildcard(s.typeURL) {
			s.forget(name)
		}
	}
	names.settle(s.pages)
	s.names, s.wildcard = names, wildcard
	return added, changed
}

// answerSotw sends the names of a type; all that the client subscribes to where a response has to be complete.
func (c *connection) answerSotw(sub *subscription, names []string, evenEmpty bool) error {
	if err := c.catchUp(sub.typeURL); err != nil {
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

// updateSotw sends what changed of one type: the whole type if a response has to be complete, because what is missing
// from it is removed by that. Clusters that go are listed until the other types no longer refer to them.
func (c *connection) updateSotw(sub *subscription, t Touched) error {
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
	d := sub.diff(want, ledger{})
	switch {
	case len(d.send) == 0 && len(d.removed) == 0:
		return nil
	case !removedLast(sub.typeURL) || len(d.removed) == 0:
		c.removeLater(sub, nil, Touched{All: true})
		return c.deliver(sub, want, nil, true)
	}
	c.removeLater(sub, d.removed, Touched{All: true})
	if len(d.send) == 0 { // removeSotw does it all
		return nil
	}
	return c.deliver(sub, slices.Concat(want, sub.leaving()), nil, true)
}

// leaving gives what is to be removed and was sent.
func (s *subscription) leaving() []*Resource {
	var leaving []*Resource
	for _, r := range s.full {
		if _, ok := s.removing[r.Name]; ok {
			leaving = append(leaving, r)
		}
	}
	return leaving
}

// removeSotw sends a type without what is to be removed.
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
		sub.forget(name) // its absence cannot be said; the client drops it with what refers to it
	}
	c.mu.Unlock()
	if err := c.deliver(sub, d.send, nil, false); err != nil {
		return err
	}
	return c.deliverAgain(sub, d)
}
