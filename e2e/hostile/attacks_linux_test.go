package hostile

import (
	"runtime"
	"slices"
	"sync"
	"testing"
)

// position is the access that an attacker has before the attack begins.
type position string

const (
	tenant          position = "tenant"           // writes configuration documents in one namespace
	outsider        position = "outsider"         // reaches the mesh through a gateway only
	unauthenticated position = "unauthenticated"  // reaches the control plane's ports without credentials
	workload        position = "workload"         // runs inside the mesh, with one service account
	application     position = "application"      // shares a pod with its sidecar
	localUser       position = "local user"       // another user of the same machine
	webPage         position = "web page"         // script in a browser on the same machine
	neighbor        position = "network neighbor" // reaches ports of the pod or the machine over the network
)

// attack is one row of the suite.
type attack struct {
	name     string // the behaviour that the attack tries to break
	position position
	limit    string // the most that the attack may reach or cost
	service  string // what legitimate clients get meanwhile
	run      func(t *testing.T)
	// exclusive: no other row runs meanwhile, because the attack uses all processors.
	exclusive bool
	// lasting: the row waits for most of a minute, so it runs in addition to the others.
	lasting bool
}

// attacks returns all rows. Each file of this package contributes those of one subject.
func attacks() []attack {
	return slices.Concat(
		endpointAttacks,
		endpointNameAttacks,
		endpointControlPlaneAttacks,
		sidecarEndpointAttacks,
		agentSocketAttacks,
		adminAttacks,
		controlPlaneAttacks,
		connectionAttacks,
		debugAttacks,
		identityAttacks,
		documentAttacks,
		registrationAttacks,
		policyAttacks,
		fetchAttacks,
		registryAttacks,
		scrapeAttacks,
		dnsAttacks,
		cniAttacks,
		captureAttacks,
		parserAttacks,
	)
}

// TestAttacksStayWithinTheirLimits runs exclusive rows first. Then as many rows as the machine has processors run at the same
// time, in addition to the lasting ones, which therefore do not call Parallel.
func TestAttacksStayWithinTheirLimits(t *testing.T) {
	var lasting, others []attack
	for _, a := range attacks() {
		switch {
		case a.exclusive:
			t.Run(a.name, a.run)
		case a.lasting:
			lasting = append(lasting, a)
		default:
			others = append(others, a)
		}
	}
	var group sync.WaitGroup
	defer group.Wait()
	for _, a := range lasting {
		group.Go(func() { t.Run(a.name, a.run) })
	}
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, a := range others {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			t.Run(a.name, a.run)
		})
	}
}

func TestEveryAttackIsDescribed(t *testing.T) {
	names := map[string]bool{}
	for _, a := range attacks() {
		if a.name == "" || a.position == "" || a.limit == "" || a.service == "" || a.run == nil {
			t.Errorf("the row %+q lacks a column", a.name)
		}
		if names[a.name] {
			t.Errorf("two rows have the name %q", a.name)
		}
		names[a.name] = true
	}
}
