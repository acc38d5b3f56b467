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
	// maxResponseTime is how long a component's health function may run before the component counts as hung. A
	// component that works returns from it immediately.
	maxResponseTime = 500 * time.Millisecond
	// minUnansweredProbes is the number of consecutive requests without a response, in addition to a minimum time,
	// after which Envoy counts as frozen. A number is necessary because a pause of the whole machine makes a single
	// late response look like a long silence.
	minUnansweredProbes = 3
)

// readinessChecks returns the checks of /healthz/ready.
func (a *Agent) readinessChecks(components []component) []status.Check {
	var checks []status.Check
	if a.envoy == nil { // if the agent runs Envoy, Envoy's check reports the drain
		checks = append(checks, status.Check{Name: "agent", Func: health.FromFunc(a.checkNotDraining)})
	}
	for _, p := range components {
		if p.health != nil {
			checks = append(checks, status.Check{Name: p.name, Func: p.health})
		}
	}
	return checks
}

// livenessChecks returns the checks of /healthz/live. If one fails, the kubelet restarts the container. They fail only
// if a restart is the only remedy: a component of the agent hangs, or Envoy has been frozen for a long time. They pass
// despite problems that a restart does not fix (no control plane, no certificate, a rejected configuration), and during
// a restart of Envoy or a drain. A component that fails permanently stops the agent anyway.
func (a *Agent) livenessChecks(certificates *sds.Server, relay *xdsproxy.Relay) []status.Check {
	checks := []status.Check{
		{Name: "certificates", Func: responsivenessCheck(func() { certificates.Health() })},
		{Name: "xds", Func: responsivenessCheck(func() { relay.Health() })},
	}
	if a.envoy != nil && a.Config.Health.EnvoySilence > 0 {
		checks = append(checks, status.Check{Name: "envoy", Func: a.envoy.checkLiveness})
	}
	return checks
}

// responsivenessCheck returns a check that fails if query does not return in time. At most one call of query runs at a
// time.
func responsivenessCheck(query func()) health.Check {
	turn := make(chan struct{}, 1) // held during a call of query
	return func() health.Condition {
		stuck := health.Condition{
			Reason: fmt.Sprintf("this component of the agent has not responded for more than %s", maxResponseTime),
			Remedy: "save /debug/pprof/goroutine?debug=2 for a bug report, and restart the proxy",
		}
		timer := time.NewTimer(maxResponseTime)
		defer timer.Stop()
		select {
		case turn <- struct{}{}:
		case <-timer.C:
			return stuck
		}
		returned := make(chan struct{})
		go func() {
			defer func() { <-turn }()
			query()
			close(returned)
		}()
		select {
		case <-returned:
			return health.Healthy
		case <-timer.C:
			return stuck
		}
	}
}

// condition returns the readiness of the current Envoy, with reason and remedy.
func (e *envoySupervisor) condition() health.Condition {
	e.mu.Lock()
	i, why := e.current, e.noInstanceReason
	e.mu.Unlock()
	switch {
	case e.requests.drain.isSet():
		return health.Condition{Reason: "the proxy is draining", Remedy: "none: this is expected after a request to drain"}
	case i == nil:
		return health.Condition{Reason: why, Remedy: "see Envoy's messages in the agent's log"}
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	c := i.condition(ctx)
	if c == health.Healthy {
		c.Reason, c.Remedy = e.describeGivenUp()
		return c
	}
	select {
	case e.recheck <- struct{}{}:
	default: // a recheck is already pending
	}
	return c
}

// describeGivenUp returns a reason and a remedy if there are killed Envoys that the kernel has not ended. Otherwise it
// returns empty strings.
func (e *envoySupervisor) describeGivenUp() (reason, remedy string) {
	n := e.countGivenUp()
	if n == 0 {
		return "", ""
	}
	return fmt.Sprintf("killed Envoy processes that still exist in the kernel: %d", n),
		"GET /debug/envoyz shows what their threads wait for (usually a disk); until the processes end, they occupy memory"
}

// checkLiveness fails if a running Envoy has not responded for a long time. It passes during a drain and while no Envoy
// runs, because a restart would not help.
func (e *envoySupervisor) checkLiveness() health.Condition {
	i := e.currentInstance()
	if i == nil || e.requests.drain.isSet() {
		return health.Healthy
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	i.condition(ctx)
	return checkFrozen(e.Config.Health.EnvoySilence, i.ready)
}

// silenceReporter reports for how long, and to how many requests, an Envoy has not responded.
type silenceReporter interface {
	UnresponsiveFor() (d time.Duration, queries int)
}

func checkFrozen(limit time.Duration, l silenceReporter) health.Condition {
	silent, queries := l.UnresponsiveFor()
	if silent < limit || queries < minUnansweredProbes {
		return health.Healthy
	}
	return health.Condition{
		Reason: fmt.Sprintf("Envoy has not responded to %d requests in %s", queries, silent.Round(time.Second)),
		Remedy: "restart the proxy",
		Since:  time.Now().Add(-silent),
	}
}

// configurationCheck returns the readiness check of the relay. During an upgrade, it ignores the relay's connection to
// the new Envoy until that Envoy is current.
func (a *Agent) configurationCheck(relay *xdsproxy.Relay) health.Check {
	return func() health.Condition {
		if a.envoy == nil {
			return relay.ConditionForClients()
		}
		pid := 0
		if i := a.envoy.currentInstance(); i != nil {
			pid = i.process.PID()
		}
		return relay.Condition(pid)
	}
}
