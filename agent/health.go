package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/sds"
	"github.com/pilotfish-mesh/pilotfish/status"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy"
)

const (
	// promptness is how long a part of the agent may take to say how it is: none of them waits for anything.
	promptness = 500 * time.Millisecond
	// silentQuestions is how many questions in a row Envoy has to leave unanswered, besides the time that passes, before it
	// counts as frozen: a machine that stood still for a while makes one late answer look like a long silence.
	silentQuestions = 3
)

// readiness are the checks of /healthz/ready.
func (a *Agent) readiness(parts []part) []status.Check {
	var checks []status.Check
	if a.envoy == nil { // which otherwise says that it drains
		checks = append(checks, status.Check{Name: "agent", Func: health.Plain(a.undrained)})
	}
	for _, p := range parts {
		if p.health != nil {
			checks = append(checks, status.Check{Name: p.name, Func: p.health})
		}
	}
	return checks
}

// liveness are the checks of /healthz/live, on which an orchestrator restarts the pod. So they fail only where that helps
// and nothing less does: a part of the agent is stuck, or Envoy is and has been for long. What a restart does not mend
// (no control plane, no certificate, a configuration that is refused) and what ends by itself (an Envoy that is started
// again, a drain) is none of their business; and a part that fails for good ends the agent anyway.
func (a *Agent) liveness(certificates *sds.Server, relay *xdsproxy.Relay) []status.Check {
	checks := []status.Check{
		{Name: "certificates", Func: answering(func() { certificates.Health() })},
		{Name: "xds", Func: answering(func() { relay.Health() })},
	}
	if a.envoy != nil && a.Config.Health.EnvoySilence > 0 {
		checks = append(checks, status.Check{Name: "envoy", Func: a.envoy.liveness})
	}
	return checks
}

// answering is the check that a part answers at all. One that does not is not asked again before it has.
func answering(ask func()) health.Check {
	turn := make(chan struct{}, 1) // holds one while the part is asked
	return func() health.Condition {
		stuck := health.Condition{
			Reason: fmt.Sprintf("this part of the agent has not answered for more than %s", promptness),
			Remedy: "restart the proxy, and report what /debug/pprof/goroutine?debug=2 says before",
		}
		timer := time.NewTimer(promptness)
		defer timer.Stop()
		select {
		case turn <- struct{}{}:
		case <-timer.C:
			return stuck
		}
		answered := make(chan struct{})
		go func() {
			defer func() { <-turn }()
			ask()
			close(answered)
		}()
		select {
		case <-answered:
			return health.Well
		case <-timer.C:
			return stuck
		}
	}
}

// condition says whether Envoy takes traffic.
func (e *envoyPart) condition() health.Condition {
	e.mu.Lock()
	i, why := e.current, e.why
	e.mu.Unlock()
	switch {
	case e.orders.drain.given():
		return health.Condition{Reason: "the proxy is draining", Remedy: "nothing: it was told to, and takes no new clients"}
	case i == nil:
		return health.Condition{Reason: why, Remedy: "see what Envoy says in the agent's log"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	c := i.condition(ctx)
	if c == health.Well {
		c.Reason, c.Remedy = e.tellGivenUp()
		return c
	}
	select {
	case e.doubts <- struct{}{}:
	default: // it is about to be looked at
	}
	return c
}

// tellGivenUp is for Envoys that were killed in vain; nothing where there are none.
func (e *envoyPart) tellGivenUp() (reason, remedy string) {
	n := e.stillGivenUp()
	if n == 0 {
		return "", ""
	}
	return fmt.Sprintf("Envoys that were killed and that the kernel has not ended: %d", n),
		"see in /debug/envoyz what their threads wait for (a disk, as a rule): until then they keep their memory"
}

// liveness fails when Envoy has not answered for long, nor often, although it runs. Where Envoy is about to end, or there
// is none, there is nothing that a restart would mend.
func (e *envoyPart) liveness() health.Condition {
	i := e.instance()
	if i == nil || e.orders.drain.given() {
		return health.Well
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	i.condition(ctx)
	return frozen(e.Config.Health.EnvoySilence, i.ready)
}

// listener is what tells how long an Envoy has been silent.
type listener interface {
	Silent() (d time.Duration, questions int)
}

func frozen(limit time.Duration, l listener) health.Condition {
	silent, questions := l.Silent()
	if silent < limit || questions < silentQuestions {
		return health.Well
	}
	return health.Condition{
		Reason: fmt.Sprintf("Envoy runs, and has not answered %d questions in %s", questions, silent.Round(time.Second)),
		Remedy: "restart the proxy",
		Since:  time.Now().Add(-silent),
	}
}

// configuration is how the relay judges what the Envoy that takes traffic has got: while another takes over from it, that
// one is not asked for yet.
func (a *Agent) configuration(relay *xdsproxy.Relay) health.Check {
	return func() health.Condition {
		if a.envoy == nil {
			return relay.ConditionForClients()
		}
		pid := 0
		if i := a.envoy.instance(); i != nil {
			pid = i.process.PID()
		}
		return relay.Condition(pid)
	}
}
