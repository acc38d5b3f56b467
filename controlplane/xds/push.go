package xds

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// takePush makes the newest state the client's, and notes what it may lack of it. A change that came while others wait to
// be sent is sent with them.
func (c *connection) takePush() {
	defer c.take()()
	p := c.takePending()
	if p == nil {
		return
	}
	c.server.metrics.queueTime.Observe(time.Since(p.queued).Seconds())
	c.mu.Lock()
	c.state, c.version = p.state, p.version
	c.mu.Unlock()
	c.note(c.touched(p.change), p.since)
}

// note adds to what the client may lack.
func (c *connection) note(touches Touches, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for typeURL, sub := range c.subs {
		t, concerned := touches[typeURL]
		if !concerned && sub.failed == nil {
			continue
		}
		if len(c.dirty) == 0 {
			c.since = since
		}
		c.dirty[typeURL] = c.dirty[typeURL].and(t)
	}
}

// and is what either concerns.
func (t Touched) and(other Touched) Touched {
	if t.All || other.All {
		return Touched{All: true}
	}
	return Touched{Names: append(t.Names, other.Names...)}
}

// advance sends what is noted, as far as the client keeps up: additions of all types in order, then removals in reverse.
// Of each type one response is on its way at a time; what refers to clusters waits until the client has those that were
// sent, and removals until it has stopped referring to what goes. Nothing waits longer than Config.Await.
func (c *connection) advance() error {
	if len(c.dirty) == 0 && !c.flushing {
		return nil
	}
	var held time.Duration
	for _, typeURL := range Order {
		t, dirty := c.dirty[typeURL]
		sub, ok := c.subs[typeURL]
		if !ok {
			continue
		}
		busy := c.busy(sub)
		if !dirty || busy > 0 || held > 0 && typeURL != EndpointType {
			if dirty || referred(typeURL) {
				held = max(held, busy)
			}
			continue
		}
		c.clean(typeURL)
		if err := c.update(sub, t); err != nil {
			return err
		}
		if referred(typeURL) {
			held = max(held, c.busy(sub))
		}
	}
	return c.finish(held)
}

// finish sends removals when nothing is left to send before them.
func (c *connection) finish(held time.Duration) error {
	if len(c.dirty) == 0 {
		if c.flushing && !c.since.IsZero() {
			c.server.metrics.convergence.Observe(time.Since(c.since).Seconds())
			c.since = time.Time{}
		}
		for _, typeURL := range []string{ListenerType, RouteType, VirtualHostType} {
			if sub, ok := c.subs[typeURL]; ok {
				held = max(held, c.busy(sub))
			}
		}
		switch {
		case c.settling, !c.anyRemovals():
			c.flushing = false
			return nil
		case held == 0:
			c.flushing = false
			return c.flushRemovals()
		}
	}
	c.hold.Reset(held)
	return nil
}

// clean takes note of a type away.
func (c *connection) clean(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dirty, typeURL)
	c.flushing = true
}

// busy says for how long still to wait for the client's answer to the last response of a type; 0 is not at all.
func (c *connection) busy(sub *subscription) time.Duration {
	if len(sub.outstanding) == 0 {
		return 0
	}
	return max(0, c.server.cfg.Await-time.Since(sub.outstanding[len(sub.outstanding)-1].at))
}

// referred says whether other types refer to resources of this one, which the client has to have before them.
func referred(typeURL string) bool { return typeURL == ClusterType }

func (c *connection) anyRemovals() bool {
	for _, sub := range c.subs {
		if len(sub.removing) > 0 {
			return true
		}
	}
	return false
}

// catchUp sends what is noted of clusters and their endpoints before something is answered that may refer to them.
func (c *connection) catchUp(typeURL string) error {
	if typeURL != ListenerType && typeURL != RouteType && typeURL != VirtualHostType {
		return nil
	}
	for _, before := range []string{ClusterType, EndpointType} {
		t, dirty := c.dirty[before]
		if !dirty {
			continue
		}
		c.clean(before)
		if err := c.update(c.subs[before], t); err != nil {
			return err
		}
	}
	return nil
}

// touched says what a change may concern. What cannot be told is everything.
func (c *connection) touched(change Change) Touches {
	touches, err := c.affected(change)
	if err != nil {
		c.log.Error("cannot tell what a change affects; everything is generated", "error", err)
		return Everything()
	}
	return touches
}

func (c *connection) affected(change Change) (touches Touches, err error) {
	if change == nil {
		return Everything(), nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("finding what is affected for %s: panic: %v\n%s", c.node, p, debug.Stack())
		}
	}()
	return c.proxy.Affected(c.state, change), nil
}

// update sends what the client lacks of what was touched of one type, and notes what has to be removed later. A type that
// could not be generated before is tried again whole.
func (c *connection) update(sub *subscription, t Touched) error {
	if sub.typeURL == VirtualHostType {
		return c.updateHosts(t)
	}
	t.All = t.All || sub.failed != nil
	if c.wire.protocol() == sotwProtocol {
		return c.updateSotw(sub, t)
	}
	d, err := c.compare(sub, t)
	if err != nil {
		return nil
	}
	if removedLast(sub.typeURL) {
		c.removeLater(sub, d.removed, t)
		d.removed = nil
	}
	if err := c.deliver(sub, d.send, d.removed, false); err != nil {
		return err
	}
	if err := c.deliverAgain(sub, d); err != nil || sub.typeURL != RouteType {
		return err
	}
	return c.followRoutes()
}

// compare generates what was touched, as far as the client subscribes to it, and compares it with what the client has.
func (c *connection) compare(sub *subscription, t Touched) (difference, error) {
	if t.All {
		want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
		if err != nil {
			return difference{}, err
		}
		return sub.diff(want, ledger{}), nil
	}
	names := sub.wanted(t.Names)
	want, err := c.generate(sub, false, names)
	if err != nil {
		return difference{}, err
	}
	return sub.diffOf(names, want), nil
}

func (c *connection) deliverAgain(sub *subscription, d difference) error {
	for _, part := range d.again {
		if err := c.deliver(sub, part, nil, false); err != nil {
			return err
		}
	}
	return nil
}

// removedLast says whether resources of the type are removed after the additions of all types, because others refer to
// them. A listener goes together with what replaces it, which may want the same address.
func removedLast(typeURL string) bool { return typeURL == ClusterType || typeURL == EndpointType }

// removeLater notes removals for the end of the push, in place of those that were noted before of what was touched.
func (c *connection) removeLater(sub *subscription, names []string, t Touched) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.All {
		clear(sub.removing)
	}
	for _, name := range t.Names {
		delete(sub.removing, name)
	}
	for _, name := range names {
		sub.removing[name] = struct{}{}
	}
}

// awaitQuiet puts the removals off until the client's requests have been answered.
func (c *connection) awaitQuiet() {
	c.settling = true
	c.settle.Reset(c.server.cfg.Settle)
}

// flushRemovals sends the removals that were noted, users before what they use.
func (c *connection) flushRemovals() error {
	for _, typeURL := range slices.Backward(Order) {
		sub, ok := c.subs[typeURL]
		if !ok || len(sub.removing) == 0 {
			continue
		}
		if err := c.remove(sub); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) remove(sub *subscription) error {
	if c.wire.protocol() == sotwProtocol {
		return c.removeSotw(sub)
	}
	names := mapKeys(sub.removing)
	instead, err := c.inPlaceOf(sub, names)
	if err != nil {
		return nil
	}
	there := map[string]bool{}
	for _, r := range instead {
		there[r.Name] = true
	}
	return c.deliver(sub, instead, slices.DeleteFunc(names, func(name string) bool { return there[name] }), false)
}

// inPlaceOf makes what the client is given in place of resources that go.
func (c *connection) inPlaceOf(sub *subscription, names []string) ([]*Resource, error) {
	replacer, ok := c.proxy.(Replacer)
	if !ok || !replacer.Replaces(sub.typeURL, names) {
		return nil, nil
	}
	return c.generate(sub, false, names)
}
