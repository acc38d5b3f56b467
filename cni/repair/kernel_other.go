//go:build !linux

package repair

import (
	"context"
	"errors"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// Kernel works on Linux only.
type Kernel struct{}

var errLinux = errors.New("pods run on Linux")

// Look works on Linux only.
func (Kernel) Look(context.Context, *sandbox.Sandbox, iptables.Options) (Evidence, error) {
	return Evidence{State: Unknown}, errLinux
}

// Mend works on Linux only.
func (Kernel) Mend(context.Context, *sandbox.Sandbox, iptables.Options) error { return errLinux }
