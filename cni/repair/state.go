package repair

import (
	"context"

	"github.com/pilotfish-mesh/pilotfish/cni/sandbox"
	"github.com/pilotfish-mesh/pilotfish/iptables"
)

// State is how the redirection of a pod is.
type State string

// The states.
const (
	Intact  State = "intact"
	Missing State = "missing" // nothing redirects the pod's traffic: it slipped past
	Drifted State = "drifted" // something does, and not as it should
	Foreign State = "foreign" // somebody else redirects it: Istio's CNI plugin or init container
	Unknown State = "unknown" // it could not be looked at
)

// Evidence is what was found in a pod's network namespace.
type Evidence struct {
	State State
	// Differences say, of a state other than Intact, what is wrong.
	Differences []string
}

// Redirection looks at the redirection of one sandbox and puts it in force.
type Redirection interface {
	// Look reads what is in force, and with prove sends packets, too, of which the pod's processes see none.
	Look(ctx context.Context, s *sandbox.Sandbox, o iptables.Options, prove bool) (Evidence, error)
	Mend(ctx context.Context, s *sandbox.Sandbox, o iptables.Options) error
}
