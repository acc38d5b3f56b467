package xds

import (
	"fmt"
	"runtime/debug"
	"slices"
	"time"
)

// takePush starts to process the pending push: it makes the push's state the client's current state, and marks the
// affected resources dirty. Resources that are still dirty from earlier pushes are sent together with them.
func (c *connection) takePush() {
	defer c.beginTransition()()
	p := c.takePending()
	if p == nil {
		return
	}
	c.server.metrics.queueTime.Observe(time.Since(p.queued).Seconds())
	c.mu.Lock()
	c.state, c.version = p.state, p.version
	c.mu.Unlock()
	c.markDirty(c.pushScope(p.change), p.changedAt)
}

// markDirty records that the resources in scope may differ from the client's resources. changedAt is the time of the
// change.
func (c *connection) markDirty(scope PushScope, changedAt time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for typeURL, sub := range c.subs {
		t, concerned := scope[typeURL]
		if !concerned && sub.generateErr == nil {
			continue
		}
		if len(c.dirty) == 0 {
			c.dirtySince = changedAt
		}
		c.dirty[typeURL] = c.dirty[typeURL].union(t)
	}
}

// union returns a scope that contains both scopes.
func (t TypeScope) union(other TypeScope) TypeScope {
	if t.All || other.All {
		return TypeScope{All: true}
	}
	return TypeScope{Names: append(t.Names, other.Names...)}
}

// advance sends dirty types as far as the client's ACKs allow. It sends the additions of all types in Order, then
// removals in reverse order. A type waits until the client has answered its last response by an ACK or NACK. Types that
// refer to clusters also wait for the ACK of the clusters. Removals wait for the ACKs of the types that may refer to
// the removed resources. No wait exceeds Config.Await.
func (c *connection) advance() error {
	if len(c.dirty) == 0 && !c.removalsPending {
		return nil
	}
	var held time.Duration
	for _, typeURL := range c.types() {
		t, dirty := c.dirty[typeURL]
		sub, ok := c.subs[typeURL]
		if !ok {
			continue
		}
		busy := c.remainingAckWait(sub)
		if !dirty || busy > 0 || held > 0 && typeURL != EndpointType {
			if dirty || isReferenced(typeURL) {
				held = max(held, busy)
			}
			continue
		}
		c.clearDirty(typeURL)
		if err := c.update(sub, t); err != nil {
			return err
		}
		if isReferenced(typeURL) {
			held = max(held, c.remainingAckWait(sub))
		}
	}
	return c.startRemovals(held)
}

// startRemovals sends the scheduled removals if no additions remain. held is the remaining time for which dirty types
// must wait.
func (c *connection) startRemovals(held time.Duration) error {
	if len(c.dirty) == 0 {
		if c.removalsPending && !c.dirtySince.IsZero() {
			c.server.metrics.convergence.Observe(time.Since(c.dirtySince).Seconds())
			c.dirtySince = time.Time{}
		}
		for _, typeURL := range []string{ListenerType, RouteType, VirtualHostType} {
			if sub, ok := c.subs[typeURL]; ok {
				held = max(held, c.remainingAckWait(sub))
			}
		}
		switch {
		case c.removalsDelayed, !c.hasRemovals():
			c.removalsPending = false
			return nil
		case held == 0:
			c.removalsPending = false
			return c.flushRemovals()
		}
	}
	c.ackTimer.Reset(held)
	return nil
}

// clearDirty clears the dirty mark of a type that is about to be sent.
func (c *connection) clearDirty(typeURL string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dirty, typeURL)
	c.removalsPending = true
}

// remainingAckWait returns how long to wait for the client's ACK of the last response of the type; 0 means no wait.
func (c *connection) remainingAckWait(sub *subscription) time.Duration {
	if len(sub.outstanding) == 0 {
		return 0
	}
	return max(0, c.server.cfg.Await-time.Since(sub.outstanding[len(sub.outstanding)-1].at))
}

// isReferenced reports whether the client must have ACKed this type before it receives the types that refer to it.
func isReferenced(typeURL string) bool { return typeURL == ClusterType }

func (c *connection) hasRemovals() bool {
	for _, sub := range c.subs {
		if len(sub.removing) > 0 {
			return true
		}
	}
	return false
}

// sendClustersBefore sends dirty clusters and assignments if resources of typeURL may refer to clusters. Call it before
// a response of typeURL.
func (c *connection) sendClustersBefore(typeURL string) error {
	if typeURL != ListenerType && typeURL != RouteType && typeURL != VirtualHostType {
		return nil
	}
	for _, before := range []string{ClusterType, EndpointType} {
		t, dirty := c.dirty[before]
		if !dirty {
			continue
		}
		c.clearDirty(before)
		if err := c.update(c.subs[before], t); err != nil {
			return err
		}
	}
	return nil
}

// pushScope returns the resources that change may affect. If ComputePushScope fails, it returns all resources.
func (c *connection) pushScope(change Change) PushScope {
	scope, err := c.callComputePushScope(change)
	if err != nil {
		c.log.Error("computing which resources a change affects failed; generating all resources", "error", err)
		return c.fullPushScope()
	}
	return scope
}

// fullPushScope returns the scope with all resources of all types of the client.
func (c *connection) fullPushScope() PushScope {
	scope := PushScope{}
	scope.AddAll(c.types()...)
	return scope
}

func (c *connection) callComputePushScope(change Change) (scope PushScope, err error) {
	if change == nil {
		return c.fullPushScope(), nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("computing the push scope of %s: panic: %v\n%s", c.node, p, debug.Stack())
		}
	}()
	return c.proxy.ComputePushScope(c.state, change), nil
}

// update sends the resources in scope t that the client lacks, and schedules removals. If the last generation failed,
// it updates the whole type.
func (c *connection) update(sub *subscription, t TypeScope) error {
	if sub.typeURL == VirtualHostType {
		return c.updateHosts(t)
	}
	t.All = t.All || sub.generateErr != nil
	if c.stream.protocol() == sotwProtocol {
		return c.updateSotw(sub, t)
	}
	d, err := c.compare(sub, t)
	if err != nil {
		return nil
	}
	if isRemovedLast(sub.typeURL) {
		c.removeLater(sub, d.removed, t)
		d.removed = nil
	}
	if err := c.deliver(sub, d.send, d.removed, false); err != nil {
		return err
	}
	if err := c.deliverRetries(sub, d); err != nil || sub.typeURL != RouteType {
		return err
	}
	return c.followRoutes()
}

// compare generates the subscribed resources in scope t. It returns how they differ from the client's resources.
func (c *connection) compare(sub *subscription, t TypeScope) (difference, error) {
	if t.All {
		want, err := c.generate(sub, sub.wildcard, sub.names.sorted())
		if err != nil {
			return difference{}, err
		}
		return sub.diff(want, versionMap{}), nil
	}
	names := sub.selectSubscribed(t.Names)
	want, err := c.generate(sub, false, names)
	if err != nil {
		return difference{}, err
	}
	return sub.diffOf(names, want), nil
}

func (c *connection) deliverRetries(sub *subscription, d difference) error {
	for _, part := range d.retries {
		if err := c.deliver(sub, part, nil, false); err != nil {
			return err
		}
	}
	return nil
}

// isRemovedLast reports whether resources of the type are removed only after the additions of all types, because other
// types refer to them. It is false for listeners: a listener and its replacement may use the same address, so one
// response must contain both changes.
func isRemovedLast(typeURL string) bool { return typeURL == ClusterType || typeURL == EndpointType }

// removeLater schedules the removal of names for the end of the push. It replaces the removals that were scheduled for
// scope t.
func (c *connection) removeLater(sub *subscription, names []string, t TypeScope) {
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

// delayRemovals delays removals until the server has responded to the client's other requests.
func (c *connection) delayRemovals() {
	c.removalsDelayed = true
	c.removalTimer.Reset(c.server.cfg.Settle)
}

// flushRemovals sends the scheduled removals. It starts with the types that refer to other types.
func (c *connection) flushRemovals() error {
	for _, typeURL := range slices.Backward(c.types()) {
		sub, ok := c.subs[typeURL]
		if !ok || len(sub.removing) == 0 {
			continue
		}
		if err := c.sendRemovals(sub); err != nil {
			return err
		}
	}
	return nil
}

func (c *connection) sendRemovals(sub *subscription) error {
	if c.stream.protocol() == sotwProtocol {
		return c.removeSotw(sub)
	}
	names := mapKeys(sub.removing)
	replacements, err := c.generateReplacements(sub, names)
	if err != nil {
		return nil
	}
	replaced := map[string]bool{}
	for _, r := range replacements {
		replaced[r.Name] = true
	}
	return c.deliver(sub, replacements, slices.DeleteFunc(names, func(name string) bool { return replaced[name] }), false)
}

// generateReplacements generates the resources that replace the resources called names, which are about to be removed.
// It returns nil if the client's Proxy provides no replacement.
func (c *connection) generateReplacements(sub *subscription, names []string) ([]*Resource, error) {
	if c.hooks.StartReplacing == nil || !c.hooks.StartReplacing(sub.typeURL, names) {
		return nil, nil
	}
	return c.generate(sub, false, names)
}
