package xdsproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// envoyState is the state of one Envoy process. Each process has its own state, because a restarted Envoy has no
// configuration.
type envoyState struct {
	since       time.Time // start time of its first stream
	hasResponse bool      // a control plane has sent a response to this Envoy
	// rejectedTypes contains the resource types of which Envoy has rejected every response so far. Without resources of
	// these types, Envoy cannot serve requests. The value contains the time of the first NACK and the reason of the
	// newest one. acceptedTypes contains the types of which Envoy has accepted a response. The value is the NACK of the
	// newest response, or nil if Envoy accepted that response.
	rejectedTypes, acceptedTypes map[string]*Nack
}

// ensureEnvoy returns the state of a process, and creates it if necessary. If there are maxProcesses states, it deletes
// all of them before, because nearly all of their processes have exited. The caller holds mu.
func (l *statusTracker) ensureEnvoy(process int32) *envoyState {
	b := l.envoys[process]
	if b == nil {
		if len(l.envoys) >= maxProcesses {
			clear(l.envoys)
		}
		b = &envoyState{since: l.now(), rejectedTypes: make(map[string]*Nack), acceptedTypes: make(map[string]*Nack)}
		l.envoys[process] = b
	}
	return b
}

func (b *envoyState) reject(a *typeTracker) {
	if _, has := b.acceptedTypes[a.TypeURL]; !has {
		first := a.LastNack
		if b.rejectedTypes[a.TypeURL] != nil {
			first = &Nack{Time: b.rejectedTypes[a.TypeURL].Time, Reason: a.LastNack.Reason, Version: a.LastNack.Version}
		}
		b.rejectedTypes[a.TypeURL] = first
		return
	}
	b.acceptedTypes[a.TypeURL] = a.LastNack
}

func (b *envoyState) acknowledge(a *typeTracker) {
	delete(b.rejectedTypes, a.TypeURL)
	b.acceptedTypes[a.TypeURL] = nil
}

// condition returns the condition of the Envoy with the PID process. If this PID is unknown, it returns the condition
// of the Envoy with the active stream, or else with the last one.
func (l *statusTracker) condition(process int32, lossLimit time.Duration) health.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.envoys[process]
	if b == nil {
		b = l.envoys[l.process]
	}
	switch {
	case b == nil:
		return health.Condition{Reason: l.noResponseReason(), Remedy: ConnectRemedy, Since: l.started}
	case !b.hasResponse:
		return health.Condition{Reason: l.noResponseReason(), Remedy: ConnectRemedy, Since: b.since}
	case len(b.rejectedTypes) > 0:
		return b.condition()
	}
	c := health.Condition{OK: true}
	var reasons []string
	if !l.isConnected {
		reasons = append(reasons, fmt.Sprintf("not connected to the control plane %s: %s; last accepted configuration %s old",
			l.upstream, l.reason, max(0, l.now().Sub(l.upToDate)).Round(time.Second)))
		c.OK = lossLimit <= 0 || l.now().Sub(l.since) < lossLimit
		c.Since, c.Remedy = l.since, ConnectRemedy
	}
	c.Reason = strings.Join(append(reasons, b.rejections()...), "; ")
	if c.Remedy == "" && c.Reason != "" {
		c.Remedy = remedyFor(c.Reason)
	}
	return c
}

// conditionForClients returns the condition for proxyless applications. Applications start only when the agent is
// ready. Before their first request, a connection to the control plane is therefore sufficient.
func (l *statusTracker) conditionForClients(lossLimit time.Duration) health.Condition {
	l.mu.Lock()
	hasRequest, reached := len(l.envoys) > 0, l.upstream != "" && l.reason == ""
	l.mu.Unlock()
	if !hasRequest && reached {
		return health.Healthy
	}
	return l.condition(0, lossLimit)
}

// condition returns the condition of an Envoy that has rejected every response of some types.
func (b *envoyState) condition() health.Condition {
	c := health.Condition{}
	var reasons []string
	for typeURL, nack := range b.rejectedTypes {
		reasons = append(reasons, fmt.Sprintf("Envoy rejected its first %s configuration: %s", shortType(typeURL), nack.Reason))
		if c.Since.IsZero() || nack.Time.Before(c.Since) {
			c.Since = nack.Time
		}
	}
	slices.Sort(reasons)
	c.Reason = strings.Join(reasons, "; ")
	c.Remedy = remedyFor(c.Reason)
	return c
}

// noResponseReason describes why Envoy has not received a response yet.
func (l *statusTracker) noResponseReason() string {
	switch {
	case l.upstream == "":
		return "connecting to the control plane"
	case l.reason != "":
		return fmt.Sprintf("not connected to the control plane %s: %s", l.upstream, l.reason)
	case !l.hasEnvoy:
		return "Envoy has not requested its configuration yet"
	}
	return fmt.Sprintf("the control plane %s has not responded yet", l.upstream)
}

// rejections describes the types whose newest response Envoy rejected after it had accepted an earlier one.
func (b *envoyState) rejections() []string {
	var reasons []string
	for typeURL, nack := range b.acceptedTypes {
		if nack != nil {
			reasons = append(reasons, fmt.Sprintf("Envoy rejected its newest %s configuration and continues with the last accepted one: %s",
				shortType(typeURL), nack.Reason))
		}
	}
	slices.Sort(reasons)
	return reasons
}
