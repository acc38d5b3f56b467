//go:build !linux

package filewatch

import "errors"

// Mounts is not supported on this system.
type Mounts struct{ Changes <-chan struct{} }

// WatchMounts returns errors.ErrUnsupported.
func WatchMounts(...string) (*Mounts, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (m *Mounts) Close() {}
