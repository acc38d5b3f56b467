//go:build !linux

package envoy

import "errors"

// ListenPorts works on Linux only.
func (p *Process) ListenPorts() (map[uint64]bool, error) {
	return nil, errors.New("listing the listening ports works on Linux only")
}

// CountClients works on Linux only.
func (p *Process) CountClients(map[uint64]bool, ...uint32) (int, error) {
	return 0, errors.New("counting the clients of an Envoy works on Linux only")
}

// PendingUpstreamBytes works on Linux only.
func (p *Process) PendingUpstreamBytes() (uint64, error) {
	return 0, errors.New("listing the connections of an Envoy works on Linux only")
}
