//go:build !linux

package filewatch

import "errors"

// Mounts is not there on this system.
type Mounts struct{ Changes <-chan struct{} }

// WatchMounts says that the system tells nothing of mounts.
func WatchMounts(...string) (*Mounts, error) { return nil, errors.ErrUnsupported }

// Close does nothing.
func (m *Mounts) Close() {}
