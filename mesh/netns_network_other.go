//go:build !linux

package mesh

import (
	"runtime"

	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// Claim always fails, because only Linux has network namespaces.
func (Captured) Claim(*topology.Topology, Resources) (Placement, error) {
	return nil, &unsupportedError{OS: runtime.GOOS}
}

// CanCapture returns the reason why this process cannot run a captured mesh.
func CanCapture() error { return &unsupportedError{OS: runtime.GOOS} }

func canCreateNamespaces() bool { return false }

func runInUserNamespace() (int, error) { return 0, CanCapture() }
