//go:build !linux

package trace

import (
	"context"
	"errors"
)

// Run returns an error, because tracing needs Linux.
func Run(context.Context, Config, func(Packet) error) error {
	return errors.New("packets can be traced on Linux only")
}
