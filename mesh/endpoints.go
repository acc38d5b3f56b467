package mesh

import (
	"net/netip"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/controlplane/registry"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// EndpointPolicy returns the restrictions on endpoints for a mesh on this machine. Unix sockets are allowed in the
// topology's directory, in the directory for temporary files and in allowUnix. They are not allowed in the directory of
// running meshes, because it contains the sockets of proxies.
func EndpointPolicy(t *topology.Topology, runtimeDir, stateDir string, allowUnix []string) registry.EndpointPolicy {
	return registry.EndpointPolicy{
		AllowUnix: append(absolutePaths(t.BaseDir(), os.TempDir(), "/tmp"), allowUnix...),
		DenyUnix:  absolutePaths(runtimeDir, stateDir),
	}
}

func absolutePaths(paths ...string) []string {
	var out []string
	for _, p := range paths {
		if absolute, err := filepath.Abs(p); err == nil && p != "" {
			out = append(out, absolute)
		}
	}
	return out
}

// endpointPolicy returns EndpointPolicy for this mesh. Without capture, the policy also allows endpoints in the mesh's
// own loopback network.
func (m *Mesh) endpointPolicy() registry.EndpointPolicy {
	p := EndpointPolicy(m.cfg.Topology, m.cfg.RuntimeDir, m.cfg.StateDir, m.cfg.AllowUnix)
	if !m.placement.Captured() {
		network, _ := m.placement.ControlPlane().Prefix(16)
		p.AllowNetworks = []netip.Prefix{network}
	}
	return p
}
