package cni

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
)

// gc implements GC for sandboxes that are missing in the runtime's list of valid attachments. It removes their
// attachment files. It also removes the rules and routes in their network namespaces if no process runs there. It never
// fails.
func (p *Plugin) gc(ctx context.Context, c *call) error {
	c.result.Outcome = agentapi.Removed
	valid := c.config.valid()
	if valid == nil {
		return nil // without the runtime's list, no attachment can be identified as stale
	}
	store := c.attachments()
	all, err := store.all()
	if err != nil {
		c.Warn("CNI GC failed", "error", err)
	}
	stale, live := partitionAttachments(all, c.config.Name, *valid, time.Now())
	for _, a := range stale {
		shared := slices.ContainsFunc(live, func(l attachment) bool { return l.Namespace == a.Namespace })
		done, err := p.collect(ctx, a, shared)
		switch {
		case err != nil:
			c.Warn("CNI GC cannot remove the rules of a sandbox", "netns", a.NetNS, "containerID", a.ContainerID, "error", err)
		case done:
			store.remove(a)
			c.Info("removed the rules of a sandbox that is not in the runtime's list of valid attachments", "netns", a.NetNS, "containerID", a.ContainerID)
		}
	}
	return nil
}

// errHasProcesses reports that GC retained the rules of a sandbox because processes still run in it.
var errHasProcesses = errors.New("the rules of the sandbox are not removed, because processes still run in it: stop these processes")

// collect removes the rules and routes of a stale attachment, unless a live attachment shares its sandbox. It reports
// whether the attachment's file may be removed too.
func (p *Plugin) collect(ctx context.Context, a attachment, shared bool) (done bool, err error) {
	netns, err := openNetNS(a.NetNS)
	if err != nil {
		return true, nil // the namespace no longer exists
	}
	defer func() { _ = netns.Close() }()
	if now, err := identify(netns); err != nil || now != a.Namespace || shared {
		return err == nil, err // the path belongs to a newer namespace, or a live attachment needs the rules
	}
	// Without the rules, the traffic of these processes would bypass their proxy.
	if lives, err := hasProcesses(a.Namespace); err != nil || lives {
		if err == nil {
			err = errHasProcesses
		}
		return false, errors.Join(err, p.redirector.repairRules(ctx, netns))
	}
	err = p.redirector.clean(ctx, netns)
	return err == nil, err
}
