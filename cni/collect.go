package cni

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// gc takes away what is left of sandboxes that the runtime does not know any more: rules and routing where nobody lives in
// the network namespace, and what was noted of it. It never fails.
func (p *Plugin) gc(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	valid := c.config.valid()
	if valid == nil {
		return nil // the runtime does not say what it knows
	}
	kept := c.attachments()
	all, err := kept.all()
	if err != nil {
		c.Warn("what the runtime has forgotten cannot be collected", "error", err)
	}
	gone, known := stale(all, c.config.Name, *valid, time.Now())
	for _, a := range gone {
		shared := slices.ContainsFunc(known, func(k attachment) bool { return k.Namespace == a.Namespace })
		done, err := p.collect(ctx, a, shared)
		switch {
		case err != nil:
			c.Warn("what the runtime has forgotten cannot be collected", "netns", a.NetNS, "of", a.ContainerID, "error", err)
		case done:
			kept.forget(a)
			c.Info("a sandbox that the runtime has forgotten is collected", "netns", a.NetNS, "of", a.ContainerID)
		}
	}
	return nil
}

// errInhabited says that rules stay for whom they capture.
var errInhabited = errors.New("processes live in it still, so that its rules stay: end them")

// collect says whether nothing is left of an attachment. Where the sandbox has other networks its rules stay for them.
func (p *Plugin) collect(ctx context.Context, a attachment, shared bool) (done bool, err error) {
	netns, err := openNetNS(a.NetNS)
	if err != nil {
		return true, nil // it is gone, and all that was in it
	}
	defer func() { _ = netns.Close() }()
	if now, err := identify(netns); err != nil || now != a.Namespace || shared {
		return err == nil, err // another one has its path now, or it lives
	}
	// Rules are taken from nobody: what runs in there would go past its proxy.
	if lives, err := inhabited(a.Namespace); err != nil || lives {
		if err == nil {
			err = errInhabited
		}
		return false, errors.Join(err, p.redirector.heal(ctx, netns))
	}
	err = p.redirector.clean(ctx, netns)
	return err == nil, err
}
