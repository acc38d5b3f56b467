package xds

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// handlePush brings the client to the newest state: additions of all types in order, then removals in reverse.
func (c *connection) handlePush() error {
	p := c.takePending()
	if p == nil {
		return nil
	}
	c.server.metrics.queueTime.Observe(time.Since(p.queued).Seconds())
	c.mu.Lock()
	c.pushing = true
	c.state, c.version = p.state, p.version
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.pushing = false
		c.mu.Unlock()
	}()
	touches := c.touched(p.change)
	touched := 0
	for _, typeURL := range Order {
		sub, ok := c.subs[typeURL]
		t, concerned := touches[typeURL]
		if !ok || !concerned && sub.failed == nil {
			continue
		}
		touched++
		if err := c.update(sub, t); err != nil {
			return err
		}
	}
	if touched == 0 {
		return nil
	}
	if !c.settling {
		if err := c.flushRemovals(); err != nil {
			return err
		}
	}
	c.server.metrics.convergence.Observe(time.Since(p.since).Seconds())
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
		return sub.diff(want, nil), nil
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
	return c.deliver(sub, nil, mapKeys(sub.removing), false)
}
