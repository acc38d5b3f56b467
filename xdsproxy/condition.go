package xdsproxy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// envoyBook is what is known of one Envoy process. A process that was started anew has nothing to go by, whatever the one
// before it had.
type envoyBook struct {
	since    time.Time // when it first had a stream
	answered bool      // a control plane has answered it
	// lacking are the types of which it rejected what came and has accepted nothing: it would answer for every request
	// that it has no route. accepted are those of which it has accepted something.
	lacking, accepted map[string]*Nack
}

// bookOf finds or opens the book of a process; the caller holds the lock. Nothing needs to be known of processes that have
// long ended.
func (l *ledger) bookOf(process int32) *envoyBook {
	b := l.envoys[process]
	if b == nil {
		if len(l.envoys) >= mostProcesses {
			clear(l.envoys)
		}
		b = &envoyBook{since: l.now(), lacking: make(map[string]*Nack), accepted: make(map[string]*Nack)}
		l.envoys[process] = b
	}
	return b
}

func (b *envoyBook) reject(a *account) {
	if _, has := b.accepted[a.TypeURL]; !has {
		first := a.LastNack
		if b.lacking[a.TypeURL] != nil {
			first = &Nack{Time: b.lacking[a.TypeURL].Time, Reason: a.LastNack.Reason, Version: a.LastNack.Version}
		}
		b.lacking[a.TypeURL] = first
		return
	}
	b.accepted[a.TypeURL] = a.LastNack
}

func (b *envoyBook) acknowledge(a *account) {
	delete(b.lacking, a.TypeURL)
	b.accepted[a.TypeURL] = nil
}

func (l *ledger) condition(process int32, lossLimit time.Duration) health.Condition {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.envoys[process]
	if b == nil {
		b = l.envoys[l.process]
	}
	switch {
	case b == nil:
		return health.Condition{Reason: l.noAnswerYet(), Remedy: reachRemedy, Since: l.began}
	case !b.answered:
		return health.Condition{Reason: l.noAnswerYet(), Remedy: reachRemedy, Since: b.since}
	case len(b.lacking) > 0:
		return b.condition()
	}
	c := health.Condition{OK: true}
	var reasons []string
	if !l.isConnected {
		reasons = append(reasons, fmt.Sprintf("not connected to the control plane %s: %s; last good configuration %s old",
			l.upstream, l.reason, max(0, l.now().Sub(l.current)).Round(time.Second)))
		c.OK = lossLimit <= 0 || l.now().Sub(l.since) < lossLimit
		c.Since, c.Remedy = l.since, reachRemedy
	}
	c.Reason = strings.Join(append(reasons, b.rejections()...), "; ")
	if c.Remedy == "" && c.Reason != "" {
		c.Remedy = remedyFor(c.Reason)
	}
	return c
}

// conditionForClients is the condition for clients that are no Envoy: they are started once the agent is ready, so what
// they have asked for is not waited for.
func (l *ledger) conditionForClients(lossLimit time.Duration) health.Condition {
	l.mu.Lock()
	asked, reached := len(l.envoys) > 0, l.upstream != "" && l.reason == ""
	l.mu.Unlock()
	if !asked && reached {
		return health.Well
	}
	return l.condition(0, lossLimit)
}

// condition of an Envoy that lacks some type.
func (b *envoyBook) condition() health.Condition {
	c := health.Condition{}
	var reasons []string
	for typeURL, nack := range b.lacking {
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

func (l *ledger) noAnswerYet() string {
	switch {
	case l.upstream == "":
		return "connecting to the control plane"
	case l.reason != "":
		return fmt.Sprintf("not connected to the control plane %s: %s", l.upstream, l.reason)
	case !l.envoy:
		return "Envoy has not asked for its configuration yet"
	}
	return fmt.Sprintf("the control plane %s has not answered yet", l.upstream)
}

func (b *envoyBook) rejections() []string {
	var reasons []string
	for typeURL, nack := range b.accepted {
		if nack != nil {
			reasons = append(reasons, fmt.Sprintf("Envoy rejected its newest %s configuration and keeps the last good one: %s",
				shortType(typeURL), nack.Reason))
		}
	}
	slices.Sort(reasons)
	return reasons
}
