package agent

import (
	"context"
	"sync"
	"time"
)

// latch is a one-time event. Only the first call of set has an effect.
type latch struct {
	once sync.Once
	ch   chan struct{}
}

func newLatch() *latch { return &latch{ch: make(chan struct{})} }

func (o *latch) set()                  { o.once.Do(func() { close(o.ch) }) }
func (o *latch) done() <-chan struct{} { return o.ch }

func (o *latch) isSet() bool {
	select {
	case <-o.ch:
		return true
	default:
		return false
	}
}

// drainRequests records the requests to drain or to stop the agent. The stop signal is not among them.
type drainRequests struct {
	drain     *latch // the agent reports that it is not ready, and Envoy drains as soon as it can
	stay      *latch // Envoy drains and continues to serve until the stop signal; a restarted Envoy drains too
	skipDrain *latch // POST /drain: the next stop signal skips the drain
	quit      *latch // POST /quitquitquit
}

func newDrainRequests() drainRequests {
	return drainRequests{drain: newLatch(), stay: newLatch(), skipDrain: newLatch(), quit: newLatch()}
}

// drainRequestTimeout limits the calls to Envoy for a drain request on the status port.
const drainRequestTimeout = drainCallTimeout + 500*time.Millisecond

// handleDrain handles POST /drain, which a pod's preStop hook sends. The agent reports not ready and Envoy's clients
// are disconnected gracefully. The following stop signal skips the drain.
func (a *Agent) handleDrain() {
	a.requests.skipDrain.set()
	a.StartDrain("POST /drain")
}

// Quit makes Run stop without a drain.
func (a *Agent) Quit() { a.requests.quit.set() }

// HasQuit reports whether Quit was called, or POST /quitquitquit received.
func (a *Agent) HasQuit() bool { return a.requests.quit.isSet() }

// checkNotDraining is the readiness check of an agent without an Envoy.
func (a *Agent) checkNotDraining() (ok bool, reason string) {
	if a.requests.drain.isSet() {
		return false, "the agent is draining"
	}
	return true, ""
}

// StartDrain starts a drain of the proxy, which continues to serve until the agent is stopped. trigger is the event
// that the log names.
func (a *Agent) StartDrain(trigger string) {
	a.requests.drain.set()
	defer a.requests.stay.set()
	a.Logger.Info("draining; the proxy serves until it is stopped", "trigger", trigger)
	if a.envoy == nil {
		return
	}
	i := a.envoy.currentInstance()
	if i == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainRequestTimeout)
	defer cancel()
	if err := a.envoy.startEnvoyDrain(ctx, i, true); err != nil {
		a.Logger.Error("Envoy did not start to drain", "error", err)
	}
}

// retryDrain retries the drain of an Envoy that was starting or did not respond when the drain was requested. Envoy
// drains only the listeners that it has when it receives the request.
func (e *envoySupervisor) retryDrain(i *envoyInstance) {
	for pace := minCountInterval; ; pace = min(pace*3/2, maxCountInterval) {
		if state, _ := i.status(); state == stateDraining {
			return
		}
		ready, _ := i.checkReady(e.upgrades.lifeCtx)
		if ready && e.startEnvoyDrain(e.upgrades.lifeCtx, i, true) == nil {
			e.Logger.Info("Envoy drains too, because a drain was requested before", "pid", i.process.PID())
			return
		}
		select {
		case <-i.process.Done():
			return
		case <-e.upgrades.lifeCtx.Done():
			return
		case <-time.After(pace):
		}
	}
}
