package repair

import (
	"context"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// State is the state of a pod's redirection.
type State string

// The states.
const (
	Intact  State = "intact"
	Missing State = "missing" // no rules redirect the pod's traffic
	Drifted State = "drifted" // the rules differ from the required ones
	Foreign State = "foreign" // another program redirects it: Istio's CNI plugin or init container
	Unknown State = "unknown" // the check failed
)

// CheckResult is the result of the check of a pod's network namespace.
type CheckResult struct {
	State State
	// Differences are the reasons for a state other than Intact.
	Differences []string
}

// Redirection checks and repairs the redirection of one sandbox.
type Redirection interface {
	// Check reads the installed rules. With prove it also sends test packets, which the pod's processes do not receive.
	Check(ctx context.Context, s *sandbox.Sandbox, o iptables.Options, prove bool) (CheckResult, error)
	Repair(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error
}
