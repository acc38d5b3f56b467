package cni

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// gc removes the remains of sandboxes that the runtime no longer knows: rules and routes in network namespaces without
// processes, and attachment files. It never fails.
func (p *Plugin) gc(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	valid := c.config.valid()
	if valid == nil {
		return nil // the runtime does not specify the valid attachments
	}
	kept := c.attachments()
	all, err := kept.all()
	if err != nil {
		c.Warn("CNI GC failed", "error", err)
	}
	gone, known := partitionAttachments(all, c.config.Name, *valid, time.Now())
	for _, a := range gone {
		shared := slices.ContainsFunc(known, func(k attachment) bool { return k.Namespace == a.Namespace })
		done, err := p.collect(ctx, a, shared)
		switch {
		case err != nil:
			c.Warn("CNI GC failed", "netns", a.NetNS, "of", a.ContainerID, "error", err)
		case done:
			kept.remove(a)
			c.Info("removed the rules of a sandbox that the runtime no longer knows", "netns", a.NetNS, "of", a.ContainerID)
		}
	}
	return nil
}

// errHasProcesses reports that rules remain because processes are still captured by them.
var errHasProcesses = errors.New("processes still run in the sandbox, so its rules remain: stop them")

// collect reports whether nothing remains of an attachment. If the sandbox has other networks, its rules remain for
// them.
func (p *Plugin) collect(ctx context.Context, a attachment, shared bool) (done bool, err error) {
	netns, err := openNetNS(a.NetNS)
	if err != nil {
		return true, nil // the namespace no longer exists
	}
	defer func() { _ = netns.Close() }()
	if now, err := identify(netns); err != nil || now != a.Namespace || shared {
		return err == nil, err // the path belongs to another namespace now, or another network uses the sandbox
	}
	// Without the rules, the remaining processes would bypass their proxy.
	if lives, err := hasProcesses(a.Namespace); err != nil || lives {
		if err == nil {
			err = errHasProcesses
		}
		return false, errors.Join(err, p.redirector.repairRules(ctx, netns))
	}
	err = p.redirector.clean(ctx, netns)
	return err == nil, err
}
