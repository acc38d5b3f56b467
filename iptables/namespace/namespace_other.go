//go:build !linux

package namespace

import (
	"context"
	"errors"
	"os"
)

var errLinux = errors.New("network namespaces are supported on Linux only")

// Do always fails on this system.
func Do(int, func() error) error { return errLinux }

// Lock is not available on this system.
type Lock struct{}

// Acquire always fails on this system.
func Acquire(context.Context, int) (*Lock, error) { return nil, errLinux }

// File returns nil.
func (*Lock) File() *os.File { return nil }

// Release does nothing.
func (*Lock) Release() {}
