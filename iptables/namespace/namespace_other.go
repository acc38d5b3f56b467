//go:build !linux

package namespace

import (
	"context"
	"errors"
	"os"
)

var errLinux = errors.New("network namespaces are of Linux")

// Do fails.
func Do(int, func() error) error { return errLinux }

// Turn is of Linux.
type Turn struct{}

// Take fails.
func Take(context.Context, int, ...func()) (*Turn, error) { return nil, errLinux }

// Held is nothing.
func (*Turn) Held() *os.File { return nil }

// End has nothing to end.
func (*Turn) End() {}
