//go:build !linux

package repair

import (
	"context"
	"errors"
	"log/slog"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
	"github.com/pilotfish-mesh/pilotfish/iptables/backends"
)

// Kernel works on Linux only.
type Kernel struct {
	Choice backends.Choice
	Logger *slog.Logger
}

var errLinux = errors.New("pods run on Linux")

// Check works on Linux only.
func (Kernel) Check(context.Context, *sandbox.Sandbox, iptables.Options, bool) (CheckResult, error) {
	return CheckResult{State: Unknown}, errLinux
}

// Repair works on Linux only.
func (Kernel) Repair(context.Context, *sandbox.Sandbox, iptables.Options) error { return errLinux }
