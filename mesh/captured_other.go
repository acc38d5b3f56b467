//go:build !linux

package mesh

import "runtime"

// Claim fails: network namespaces are Linux's.
func (Captured) Claim(*Topology, Resources) (Placement, error) {
	return nil, &UnsupportedError{OS: runtime.GOOS}
}

// CanCapture says why this process cannot run a captured mesh.
func CanCapture() error { return &UnsupportedError{OS: runtime.GOOS} }

func mayMakeNamespaces() bool { return false }

func runInUserNamespace() (int, error) { return 0, CanCapture() }
