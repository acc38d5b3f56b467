//go:build !linux

package envoy

import (
	"context"
	"errors"
)

// ParentEnvoy is available on Linux only.
type ParentEnvoy struct{}

// ConnectParent works on Linux only.
func (h HotRestart) ConnectParent() (*ParentEnvoy, error) {
	return nil, errors.New("hot restart works on Linux only")
}

// Close does nothing.
func (e *ParentEnvoy) Close() error { return nil }

// Gauges works on Linux only.
func (e *ParentEnvoy) Gauges(context.Context) (map[string]uint64, error) {
	return nil, errors.New("hot restart works on Linux only")
}
