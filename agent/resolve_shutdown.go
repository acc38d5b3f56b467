package agent

import (
	"strconv"
	"time"
)

const (
	// defaultGrace is what Kubernetes gives a pod that does not say otherwise.
	defaultGrace = 30 * time.Second
	// mostMargin is what is left of the grace period, so that the agent has ended before it is killed.
	mostMargin = 2 * time.Second
	// mostStop is what Envoy gets to end at the deadline; as a rule it takes a tenth of a second.
	mostStop = 2 * time.Second
	// kubernetesPreDelay is how long it takes, as a rule, until whoever sends traffic to a pod knows that it is going.
	kubernetesPreDelay = 3 * time.Second
	// longestIdle bounds the wait for the last connection where no grace period was told: whoever asks for that wait has
	// set a grace period to fit, which nothing tells the agent.
	longestIdle = time.Hour
)

// shutdown makes one deadline of the grace period, and lets the contract's settings mean what they meant within it.
func (r *resolver) shutdown() {
	s, env := &r.config.Shutdown, r.env
	grace := parsed(env, "shutdown.gracePeriod", "TERMINATION_GRACE_PERIOD", defaultGrace,
		"write the seconds, or the duration, that whoever stops the agent waits before it kills it, as 30 or 30s", parseGrace)
	s.Deadline, s.Linger = grace-min(mostMargin, grace/10), r.config.Proxy.GetTerminationDrainDuration().AsDuration()
	env.note("shutdown.linger", s.Linger, r.layers.source("termination_drain_duration"))
	if s.Linger < 0 {
		r.fail("terminationDrainDuration: %v: a drain cannot take less than no time", s.Linger)
	}
	s.WhenIdle = env.boolean("shutdown.whenIdle", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)
	inPod := env.vars["KUBERNETES_SERVICE_HOST"] != ""
	r.preDelay(inPod)
	r.minimumDrain(inPod)
	if inPod {
		s.TerminationMessage = env.text("shutdown.terminationMessage", "TERMINATION_MESSAGE_PATH", "/dev/termination-log", sourceDefault)
	}
	s.Stop = min(mostStop, s.Deadline/4)
	r.deadline(env.vars["TERMINATION_GRACE_PERIOD"] != "")
}

// preDelay: in a pod, traffic goes on to come for a while after its end began.
func (r *resolver) preDelay(inPod bool) {
	otherwise := time.Duration(0)
	if inPod {
		otherwise = min(kubernetesPreDelay, r.config.Shutdown.Deadline/3)
	}
	r.config.Shutdown.PreDelay = r.env.duration("shutdown.preDelay", "PRE_DRAIN_DELAY", otherwise)
}

// minimumDrain: an application that ends beside its proxy may need it to the last, though no connection shows that. In a
// pod the proxy therefore stays at least as long as Istio's does.
func (r *resolver) minimumDrain(inPod bool) {
	s := &r.config.Shutdown
	switch {
	case s.WhenIdle || r.env.vars["MINIMUM_DRAIN_DURATION"] != "":
		s.Minimum = r.env.duration("shutdown.minimum", "MINIMUM_DRAIN_DURATION", 5*time.Second)
	case inPod:
		s.Minimum = max(0, s.Linger-s.PreDelay)
		r.env.note("shutdown.minimum", s.Minimum, "terminationDrainDuration less PRE_DRAIN_DELAY, in Kubernetes")
	default:
		r.env.note("shutdown.minimum", s.Minimum, sourceDefault)
	}
}

// deadline makes room for the waits that were asked for, unless the grace period was told: then they are cut to it.
func (r *resolver) deadline(told bool) {
	s := &r.config.Shutdown
	source := "TERMINATION_GRACE_PERIOD, less a margin"
	need := s.PreDelay + max(s.Linger, s.Minimum) + s.Stop
	if s.WhenIdle && !told {
		need = max(need, longestIdle)
	}
	if need > s.Deadline && told {
		r.env.warn("the end of the proxy would take %v (pre-delay %v, then %v, then %v to stop), and TERMINATION_GRACE_PERIOD leaves %v: what does not fit is cut; give it more, or the others less",
			need, s.PreDelay, max(s.Linger, s.Minimum), s.Stop, s.Deadline)
	} else if need > s.Deadline {
		s.Deadline, source = need, "PRE_DRAIN_DELAY and the drain's settings; no TERMINATION_GRACE_PERIOD is told"
	}
	r.env.note("shutdown.deadline", s.Deadline, source)
}

// parseGrace reads a duration, or seconds as Kubernetes and systemd write them.
func parseGrace(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		text = strconv.FormatUint(seconds, 10) + "s"
	}
	d, err := time.ParseDuration(text)
	if err == nil && d <= 0 {
		err = strconv.ErrRange
	}
	return d, err
}
