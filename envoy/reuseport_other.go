//go:build !linux

package envoy

import "errors"

// ReusePortSteering works on Linux only.
type ReusePortSteering struct{}

// SteerConnections returns an error.
func SteerConnections(older, newer *Process) (*ReusePortSteering, error) {
	return &ReusePortSteering{}, errors.New("directing new connections to the new Envoy works on Linux only")
}

// ExcludeOld does nothing.
func (s *ReusePortSteering) ExcludeOld() error { return nil }

// Stop does nothing.
func (s *ReusePortSteering) Stop() {}

// PortCount returns 0.
func (s *ReusePortSteering) PortCount() int { return 0 }
