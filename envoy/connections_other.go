//go:build !linux

package envoy

import "errors"

// Listens works on Linux only.
func (p *Process) Listens() (map[uint64]bool, error) {
	return nil, errors.New("finding where an Envoy listens works on Linux only")
}

// Clients works on Linux only.
func (p *Process) Clients(map[uint64]bool, ...uint32) (int, error) {
	return 0, errors.New("counting an Envoy's clients without asking it works on Linux only")
}

// Untaken works on Linux only.
func (p *Process) Untaken() (uint64, error) {
	return 0, errors.New("looking at an Envoy's connections works on Linux only")
}
