package config

import (
	"strconv"
	"time"
)

const (
	// defaultGracePeriod is Kubernetes' default termination grace period.
	defaultGracePeriod = 30 * time.Second
	// maxGraceMargin is the maximum reserve at the end of the grace period, so that the agent exits before SIGKILL.
	maxGraceMargin = 2 * time.Second
	// maxStopTime is the time reserved for Envoy's exit at the deadline; usually it needs 0.1 s.
	maxStopTime = 2 * time.Second
	// kubernetesPreDelay is the usual time until all clients know that a pod is terminating.
	kubernetesPreDelay = 3 * time.Second
	// maxIdleWait limits the wait for the last connection if TERMINATION_GRACE_PERIOD is not set. The pod then has a
	// suitable grace period, which the agent cannot read.
	maxIdleWait = time.Hour
)

// resolveShutdown derives one deadline from the grace period, and fits Istio's settings into it.
func (r *resolver) resolveShutdown() {
	s, env := &r.config.Shutdown, r.env
	grace := parseVariable(env, "shutdown.gracePeriod", "TERMINATION_GRACE_PERIOD", defaultGracePeriod,
		"write the time between SIGTERM and SIGKILL for the agent, in seconds or as a duration, as 30 or 30s", parseGrace)
	s.Deadline, s.Linger = grace-min(maxGraceMargin, grace/10), r.config.Proxy.GetTerminationDrainDuration().AsDuration()
	env.addSetting("shutdown.linger", s.Linger, r.merger.source("termination_drain_duration"))
	if s.Linger < 0 {
		r.addError("terminationDrainDuration: %v: write a duration that is not negative, as 5s", s.Linger)
	}
	s.WhenIdle = env.boolean("shutdown.whenIdle", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)
	inPod := env.vars["KUBERNETES_SERVICE_HOST"] != ""
	r.resolvePreDelay(inPod)
	r.resolveMinimumDrain(inPod)
	if inPod {
		s.TerminationMessage = env.text("shutdown.terminationMessage", "TERMINATION_MESSAGE_PATH", "/dev/termination-log", sourceDefault)
	}
	s.Stop = min(maxStopTime, s.Deadline/4)
	r.resolveDeadline(env.vars["TERMINATION_GRACE_PERIOD"] != "")
}

// resolvePreDelay resolves the delay before the drain. In a pod, new traffic arrives for a while after the termination
// has begun.
func (r *resolver) resolvePreDelay(inPod bool) {
	otherwise := time.Duration(0)
	if inPod {
		otherwise = min(kubernetesPreDelay, r.config.Shutdown.Deadline/3)
	}
	r.config.Shutdown.PreDelay = r.env.duration("shutdown.preDelay", "PRE_DRAIN_DELAY", otherwise)
}

// resolveMinimumDrain resolves the minimum drain time. A terminating application may need its proxy to the end,
// although no connection shows that. In a pod the proxy therefore runs at least as long as Istio's.
func (r *resolver) resolveMinimumDrain(inPod bool) {
	s := &r.config.Shutdown
	switch {
	case s.WhenIdle || r.env.vars["MINIMUM_DRAIN_DURATION"] != "":
		s.Minimum = r.env.duration("shutdown.minimum", "MINIMUM_DRAIN_DURATION", 5*time.Second)
	case inPod:
		s.Minimum = max(0, s.Linger-s.PreDelay)
		r.env.addSetting("shutdown.minimum", s.Minimum, "terminationDrainDuration less PRE_DRAIN_DELAY, in Kubernetes")
	default:
		r.env.addSetting("shutdown.minimum", s.Minimum, sourceDefault)
	}
}

// resolveDeadline extends the deadline to fit the configured waits. If the grace period is set, it only warns that they
// will be cut.
func (r *resolver) resolveDeadline(isGraceSet bool) {
	s := &r.config.Shutdown
	source := "TERMINATION_GRACE_PERIOD, less a margin"
	need := s.PreDelay + max(s.Linger, s.Minimum) + s.Stop
	if s.WhenIdle && !isGraceSet {
		need = max(need, maxIdleWait)
	}
	if need > s.Deadline && isGraceSet {
		r.env.warn("the shutdown needs %v (pre-delay %v, then %v, then %v to stop), but TERMINATION_GRACE_PERIOD leaves %v; the shutdown is cut to that: increase it, or reduce the others",
			need, s.PreDelay, max(s.Linger, s.Minimum), s.Stop, s.Deadline)
	} else if need > s.Deadline {
		s.Deadline, source = need, "PRE_DRAIN_DELAY and the drain's settings; TERMINATION_GRACE_PERIOD is not set"
	}
	r.env.addSetting("shutdown.deadline", s.Deadline, source)
}

// parseGrace parses a duration, or a number of seconds as in Kubernetes and systemd.
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
