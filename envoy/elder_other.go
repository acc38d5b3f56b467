//go:build !linux

package envoy

import (
	"context"
	"errors"
)

// Elder is there on Linux only, where hot restart is.
type Elder struct{}

// Elder is not available on this system.
func (h HotRestart) Elder() (*Elder, error) {
	return nil, errors.New("hot restart is there on Linux only")
}

// Close does nothing.
func (e *Elder) Close() error { return nil }

// Gauges is not available on this system.
func (e *Elder) Gauges(context.Context) (map[string]uint64, error) {
	return nil, errors.New("hot restart is there on Linux only")
}
