package agent

import (
	"context"
	"sync"
	"time"
)

// order is something that the agent is told to do once; told again, nothing more happens.
type order struct {
	once sync.Once
	ch   chan struct{}
}

func newOrder() *order { return &order{ch: make(chan struct{})} }

func (o *order) give()                 { o.once.Do(func() { close(o.ch) }) }
func (o *order) done() <-chan struct{} { return o.ch }

func (o *order) given() bool {
	select {
	case <-o.ch:
		return true
	default:
		return false
	}
}

// orders are what the agent was told from outside, besides to end.
type orders struct {
	drain     *order // not ready any more: the proxy drains, or is about to
	stay      *order // to drain, and to go on until the order to end: an Envoy that is started after it drains too
	endAtOnce *order // POST /drain: the next order to end is carried out at once
	quit      *order // POST /quitquitquit
}

func newOrders() orders {
	return orders{drain: newOrder(), stay: newOrder(), endAtOnce: newOrder(), quit: newOrder()}
}

// drainTime bounds what a drain that was ordered on the status port takes of Envoy.
const drainTime = drainCallTime + 500*time.Millisecond

// drainOnStatusPort answers POST /drain, which a pod's preStop hook sends: the agent is not ready any more, clients are
// told to go, and the order to end that follows is carried out at once.
func (a *Agent) drainOnStatusPort() {
	a.orders.endAtOnce.give()
	a.drainAndStay("POST /drain")
}

// undrained is the health of an agent that has no Envoy to drain.
func (a *Agent) undrained() (ok bool, reason string) {
	if a.orders.drain.given() {
		return false, "told to drain"
	}
	return true, ""
}

// drainAndStay has the proxy drain, and goes on until it is told to end. The order to end then only waits for what is
// left.
func (a *Agent) drainAndStay(by string) {
	a.orders.drain.give()
	defer a.orders.stay.give()
	a.Logger.Info("draining, and staying until told to end", "by", by)
	if a.envoy == nil {
		return
	}
	i := a.envoy.instance()
	if i == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if err := a.envoy.tellClients(ctx, i, true); err != nil {
		a.Logger.Error("Envoy was not told to drain", "error", err)
	}
}

// keepDraining has an Envoy drain that could not be told when the order came: it was about to start, or did not answer.
// Only listeners that Envoy has already are drained.
func (e *envoyPart) keepDraining(i *instance) {
	for pace := firstCount; ; pace = min(pace*3/2, rarestCount) {
		if state, _ := i.status(); state == Draining {
			return
		}
		ready, _ := i.check(e.upgrades.life)
		if ready && e.tellClients(e.upgrades.life, i, true) == nil {
			e.Logger.Info("Envoy drains too, since that was ordered before", "pid", i.process.PID())
			return
		}
		select {
		case <-i.process.Done():
			return
		case <-e.upgrades.life.Done():
			return
		case <-time.After(pace):
		}
	}
}
