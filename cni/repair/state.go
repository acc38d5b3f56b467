package repair

import (
	"context"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// State is the state of a pod's redirection.
type State string

// The values of State.
const (
	Intact  State = "intact"  // the installed rules are correct
	Missing State = "missing" // redirection rules are not installed
	Drifted State = "drifted" // the installed rules differ from those that the pod requires
	Foreign State = "foreign" // another program redirects the pod's traffic, such as Istio's CNI plugin or init container
	Unknown State = "unknown" // the check failed
)

// CheckResult is the result of the check of a pod's network namespace.
type CheckResult struct {
	State State
	// Differences explain a state other than Intact.
	Differences []string
}

// Redirection checks and repairs the redirection of one sandbox.
type Redirection interface {
	// Check compares the installed rules with those that the options require. With prove it also sends test packets,
	// which the pod's processes do not receive.
	Check(ctx context.Context, s *sandbox.Sandbox, o iptables.Options, prove bool) (CheckResult, error)
	// Repair installs the rules that the options require.
	Repair(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error
}
