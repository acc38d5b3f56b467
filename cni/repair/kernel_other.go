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

// Kernel is implemented only on Linux.
type Kernel struct {
	Choice backends.Choice
	Logger *slog.Logger
}

var errLinux = errors.New("redirection is supported only on Linux")

// Check returns an error; it is implemented only on Linux.
func (Kernel) Check(context.Context, *sandbox.Sandbox, iptables.Options, bool) (CheckResult, error) {
	return CheckResult{State: Unknown}, errLinux
}

// Repair returns an error; it is implemented only on Linux.
func (Kernel) Repair(context.Context, *sandbox.Sandbox, iptables.Options) error { return errLinux }
