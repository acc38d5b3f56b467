//go:build !linux

package namespace

import (
	"context"
	"errors"
)

var errLinux = errors.New("network namespaces are of Linux")

// Do fails.
func Do(int, func() error) error { return errLinux }

// Lock fails.
func Lock(context.Context, int) (release func(), err error) { return nil, errLinux }
