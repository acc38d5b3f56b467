//go:build !linux

package trace

import (
	"context"
	"errors"
)

// Run fails: only Linux has what it asks.
func Run(context.Context, Config, func(Packet) error) error {
	return errors.New("packets can be traced on Linux only")
}

// PutBack fails, as Run.
func PutBack([]string) error { return errors.New("packets can be traced on Linux only") }
