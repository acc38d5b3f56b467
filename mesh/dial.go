package mesh

import (
	"context"
	"fmt"
	"net"
)

// Dial connects as the application of an instance does, or, for no instance, as somebody does who is in the mesh's
// network and has no sidecar. Where traffic is captured, an instance's names are those of the mesh.
func (m *Mesh) Dial(ctx context.Context, instance, network, address string) (net.Conn, error) {
	if instance == "" {
		m.mu.Lock()
		placement := m.placement
		m.mu.Unlock()
		if placement == nil {
			return nil, errNotStarted
		}
		return placement.Dial(ctx, network, address)
	}
	for _, r := range m.snapshotRunners() {
		if r.instance.Name == instance {
			return r.attached.Dial(ctx, network, address)
		}
	}
	return nil, fmt.Errorf("mesh %s has no workload instance %q", m.Name(), instance)
}
