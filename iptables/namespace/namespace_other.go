//go:build !linux

package namespace

import (
	"context"
	"errors"
	"os"
)

var errLinux = errors.New("network namespaces are of Linux")

// Do always fails on this system.
func Do(int, func() error) error { return errLinux }

// Lock is not available on this system.
type Lock struct{}

// Take always fails on this system.
func Take(context.Context, int, ...func()) (*Lock, error) { return nil, errLinux }

// Held returns nil.
func (*Lock) Held() *os.File { return nil }

// End does nothing.
func (*Lock) End() {}
