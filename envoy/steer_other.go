//go:build !linux

package envoy

import "errors"

// Steering works on Linux only.
type Steering struct{}

// Steer fails.
func Steer(older, newer *Process) (*Steering, error) {
	return &Steering{}, errors.New("steering connections works on Linux only")
}

// Narrow does nothing.
func (s *Steering) Narrow() error { return nil }

// End does nothing.
func (s *Steering) End() {}

// Ports is 0.
func (s *Steering) Ports() int { return 0 }
