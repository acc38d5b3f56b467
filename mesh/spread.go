package mesh

import (
	"context"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// spreadTimeout bounds how long a mesh whose instances are all ready waits until every proxy has answered what it was
// told of the others. A proxy that does not answer is for status to show; it does not hold up the mesh.
const (
	spreadTimeout  = 5 * time.Second
	spreadInterval = 10 * time.Millisecond
)

// awaitSpread waits until the proxies know of each other: an instance that is ready can be called only by those that
// were told so, which takes a moment longer.
func (m *Mesh) awaitSpread(ctx context.Context) error {
	limit := time.NewTimer(spreadTimeout)
	defer limit.Stop()
	for !m.spread() {
		select {
		case <-time.After(spreadInterval):
		case <-limit.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-m.ended:
			return ErrEnded
		}
	}
	return nil
}

// spread says whether the control plane has told every proxy all that it knows, and has got an answer.
func (m *Mesh) spread() bool {
	p := m.currentPlane()
	if p == nil {
		return true
	}
	control, full := p.status()
	return !control.Running || answered(full)
}

func answered(s controlplane.Status) bool {
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
