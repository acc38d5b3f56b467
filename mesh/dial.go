package mesh

import (
	"context"
	"net"
	"path/filepath"
)

// Dial connects to address as the application of an instance does. If instance is empty, it connects as a client in the
// mesh's network that has no sidecar. If traffic is captured, the resolver of the instance's application resolves
// names.
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
	r, err := m.findRunner(instance)
	if err != nil {
		return nil, err
	}
	return r.attachment.Dial(ctx, network, address)
}

// DialAdmin connects to the admin interface of an instance's Envoy.
func (m *Mesh) DialAdmin(ctx context.Context, instance string) (net.Conn, error) {
	r, err := m.findRunner(instance)
	if err != nil {
		return nil, err
	}
	return dialSocket(ctx, filepath.Join(m.agentDir(r.instance), adminSocketPath))
}
