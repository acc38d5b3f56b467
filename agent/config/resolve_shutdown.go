package config

import (
	"strconv"
	"time"
)

const (
	// defaultGracePeriod is Kubernetes' default termination grace period.
	defaultGracePeriod = 30 * time.Second
	// maxGraceMargin is the maximum time between the agent's deadline and the end of the grace period. At the end of
	// the grace period, the kubelet sends SIGKILL.
	maxGraceMargin = 2 * time.Second
	// maxStopTime is the maximum part of the deadline that the agent reserves for Envoy's exit. Envoy usually exits
	// within 0.1 s.
	maxStopTime = 2 * time.Second
	// kubernetesPreDelay is the default of PRE_DRAIN_DELAY in a pod: the usual time until all clients have removed the
	// terminating pod from their endpoints.
	kubernetesPreDelay = 3 * time.Second
	// maxIdleWait limits the wait for the last connection if EXIT_ON_ZERO_ACTIVE_CONNECTIONS is set but
	// TERMINATION_GRACE_PERIOD is not. It is long, because the agent cannot determine the pod's grace period.
	maxIdleWait = time.Hour
)

// resolveShutdown derives the deadline of the shutdown from the grace period, and resolves the shutdown's phases.
func (r *resolver) resolveShutdown() {
	s, env := &r.config.Shutdown, r.env
	grace := parseVariable(env, "shutdown.gracePeriod", "TERMINATION_GRACE_PERIOD", defaultGracePeriod,
		"write the time between SIGTERM and SIGKILL for the agent, in seconds or as a duration, such as 30 or 30s", parseGrace)
	s.Deadline, s.Linger = grace-min(maxGraceMargin, grace/10), r.config.Proxy.GetTerminationDrainDuration().AsDuration()
	env.addSetting("shutdown.linger", s.Linger, r.merger.source("termination_drain_duration"))
	if s.Linger < 0 {
		r.env.warn("terminationDrainDuration: %v: write a duration that is not negative, such as 5s; 0s applies", s.Linger)
		s.Linger = 0
	}
	s.WhenIdle = env.boolean("shutdown.whenIdle", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS", false)
	inPod := r.isInPod()
	r.resolvePreDelay(inPod)
	r.resolveMinimumDrain(inPod)
	s.Quiet = env.duration("shutdown.quiet", "DRAIN_QUIET_PERIOD", time.Second)
	if inPod {
		s.TerminationMessage = env.text("shutdown.terminationMessage", "TERMINATION_MESSAGE_PATH", "/dev/termination-log", sourceDefault)
	}
	s.Stop = min(maxStopTime, s.Deadline/4)
	r.resolveDeadline(env.vars["TERMINATION_GRACE_PERIOD"] != "")
}

// isInPod reports whether the agent runs in a pod of Kubernetes.
func (r *resolver) isInPod() bool { return r.env.vars["KUBERNETES_SERVICE_HOST"] != "" }

// resolvePreDelay resolves the delay before the drain. In a pod, its default is above 0, because clients send new
// requests for a short time after the pod's termination has begun.
func (r *resolver) resolvePreDelay(inPod bool) {
	otherwise := time.Duration(0)
	if inPod {
		otherwise = min(kubernetesPreDelay, r.config.Shutdown.Deadline/3)
	}
	r.config.Shutdown.PreDelay = r.env.duration("shutdown.preDelay", "PRE_DRAIN_DELAY", otherwise)
}

// resolveMinimumDrain resolves the minimum duration of the drain. A terminating application may send requests through
// its proxy later, even if no connection is open now. In a pod, the drain therefore lasts at least as long as in
// Istio's agent.
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

// resolveDeadline extends the deadline if the phases of the shutdown together need more time. If isGraceSet is true, it
// does not extend the deadline, but warns that the deadline will cut the phases.
func (r *resolver) resolveDeadline(isGraceSet bool) {
	s := &r.config.Shutdown
	source := "TERMINATION_GRACE_PERIOD, less a margin"
	need := s.PreDelay + max(s.Linger, s.Minimum) + s.Stop
	if s.WhenIdle && !isGraceSet {
		need = max(need, maxIdleWait)
	}
	if need > s.Deadline && isGraceSet {
		r.env.warn("the shutdown needs %v (pre-delay %v, drain %v, stop %v), but TERMINATION_GRACE_PERIOD allows only %v, so the shutdown will be cut: increase TERMINATION_GRACE_PERIOD, or reduce PRE_DRAIN_DELAY and the drain settings",
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
