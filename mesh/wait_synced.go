package mesh

import (
	"context"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// syncTimeout limits how long the mesh waits, after all instances are ready, until every proxy has acknowledged its
// configuration. After this time the mesh counts as ready, and its status shows the slow proxies.
const (
	syncTimeout  = 5 * time.Second
	syncInterval = 10 * time.Millisecond
)

// waitSynced waits until the configuration of all proxies, and the forwarding rules, contain all ready instances, or until
// syncTimeout has passed. The configuration is complete slightly later than the instances are ready.
func (m *Mesh) waitSynced(ctx context.Context) error {
	limit := time.NewTimer(syncTimeout)
	defer limit.Stop()
	defer m.awaitRules(ctx)
	for !m.isSynced() {
		select {
		case <-time.After(syncInterval):
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-m.done:
			return ErrEnded
		}
	}
	return nil
}

// isSynced reports whether every proxy has acknowledged the control plane's newest configuration. It returns true
// while the control plane is not running.
func (m *Mesh) isSynced() bool {
	p := m.currentControlPlane()
	if p == nil {
		return true
	}
	control, full := p.status()
	return !control.Running || isAcknowledged(full)
}

func isAcknowledged(s controlplane.Status) bool {
	if s.Pending {
		return false
	}
	for _, c := range s.Clients {
		if c.Pushing {
			return false
		}
		for _, t := range c.Types {
			if t.Unanswered > 0 {
				return false
			}
		}
	}
	return true
}
