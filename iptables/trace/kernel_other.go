//go:build !linux

package trace

import (
	"context"
	"errors"
)

// Run returns an error, because tracing needs Linux.
func Run(context.Context, Config, func(Packet) error) error {
	return errors.New("tracing packets is supported on Linux only")
}
