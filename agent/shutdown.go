package agent

import (
	"context"
	"errors"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

const (
	// drainCallTime bounds the calls that begin and end the drain: an Envoy that does not answer is not waited for.
	drainCallTime = 2 * time.Second
	// servesTime bounds the question whether Envoy has served anybody yet.
	servesTime = 500 * time.Millisecond
	// longestStop is what Envoy gets to end when the deadline leaves it, and hastened when the agent was asked twice.
	longestStop = 5 * time.Second
	hastened    = time.Second
)

// Why a drain is not waited for any longer.
var (
	errHastened = errors.New("asked again to stop")
	errQuit     = errors.New("asked on the status port to quit")
	errGone     = errors.New("it ended while it drained")
	errTimeOver = errors.New("the time that there is to end is over")
)

// ending takes one Envoy to its end: it serves on for a while, tells its clients to go, waits for them, and is told to end.
type ending struct {
	*envoyPart
	i        *instance
	plan     ShutdownConfig
	deadline time.Time
	bad      bool // what it serves is cut
}

// stop ends an Envoy within one deadline.
func (e *envoyPart) stop(i *instance) {
	plan := e.Config.Shutdown
	e.orders.drain.give()
	deadline, cancel := context.WithTimeout(context.Background(), plan.Deadline)
	defer cancel()
	n := &ending{envoyPart: e, i: i, plan: plan}
	n.deadline, _ = deadline.Deadline()

	why := n.atOnce()
	if why == "" {
		e.Logger.Info("ending", "within", plan.Deadline, "preDelay", plan.PreDelay, "minimum", plan.Minimum, "linger", plan.Linger, "untilIdle", plan.WhenIdle)
		why = n.leave(deadline)
	}
	if n.bad {
		n.reportBeforeEnd(deadline, why)
	}
	e.Logger.Info("stopping Envoy", "because", why)
	last, cancelLast := n.lastGrace(deadline)
	defer cancelLast()
	i.enter(Stopping)
	i.process.Stop(last)
}

// atOnce says why there is no drain; nothing when there is one.
func (n *ending) atOnce() string {
	switch {
	case n.orders.quit.given():
		return errQuit.Error()
	case n.orders.endAtOnce.given():
		return "it was told before to drain, on the status port"
	}
	return ""
}

// leave lets clients leave, and says why it stopped waiting for them. Those of an Envoy that this one has just taken over
// from count too: at SIGTERM it would end that one as well.
func (n *ending) leave(deadline context.Context) string {
	ctx, cancel := n.patience(deadline)
	defer cancel()
	why := n.ownLeave(ctx)
	elder := n.i.elder.Load()
	if elder == nil || ended(elder) {
		return why
	}
	n.Logger.Info("waiting for the Envoy before, which still drains", "pid", elder.process.PID())
	select {
	case <-elder.process.Done():
		return why
	case <-ctx.Done():
		return context.Cause(ctx).Error()
	}
}

func (n *ending) ownLeave(ctx context.Context) string {
	if !n.serves(ctx) {
		if why := n.neverReady(); why != "" {
			n.reportBeforeEnd(ctx, why)
		}
		return "it has not served anybody yet"
	}
	if !sleep(ctx, n.preDelay()) {
		return context.Cause(ctx).Error()
	}
	if err := n.tellClients(ctx, n.i, false); err != nil {
		n.Logger.Warn("Envoy was not told to drain", "error", err)
		n.i.enter(Draining) // of its own accord its clients may go nevertheless
	}
	return n.wait(ctx)
}

// patience ends when the drain has to: Envoy needs the rest of the deadline, somebody is impatient, or Envoy is gone.
func (n *ending) patience(deadline context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTime := context.WithTimeoutCause(deadline, n.plan.Deadline-n.plan.Stop, errTimeOver)
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-n.Hasten:
			cancel(errHastened)
		case <-n.orders.quit.done():
			cancel(errQuit)
		case <-n.i.process.Done():
			cancel(errGone)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); cancelTime() }
}

// serves says whether the Envoy may have clients. One that cannot be asked may.
func (n *ending) serves(ctx context.Context) bool {
	if state, _ := n.i.status(); state != Starting {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, servesTime)
	defer cancel()
	if ok, _ := n.i.check(ctx); ok {
		return true
	}
	seen, err := n.i.load(ctx, n.own)
	if err != nil {
		return !envoy.NotListening(err)
	}
	return !seen.none()
}

// preDelay is what is left of it: clients of an Envoy that was drained before had that time already.
func (n *ending) preDelay() time.Duration {
	if state, since := n.i.status(); state == Draining {
		return n.plan.PreDelay - time.Since(since)
	}
	return n.plan.PreDelay
}

// lastGrace is the time that Envoy has to end: to the deadline, or less when the agent is asked again to stop.
func (n *ending) lastGrace(deadline context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(deadline, longestStop)
	go func() {
		select {
		case <-n.Hasten:
			sleep(ctx, hastened)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// tellClients begins Envoy's own drain, unless that has begun: new connections are taken until Envoy's drain time is over,
// or for as long as it runs when it is to stay open, and each answer asks its client to go.
func (e *envoyPart) tellClients(ctx context.Context, i *instance, stayOpen bool) error {
	if state, _ := i.status(); state == Draining {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainCallTime)
	defer cancel()
	err := i.admin.DrainListeners(ctx, envoy.Drain{InboundOnly: e.inboundOnly(), Graceful: true, SkipExit: stayOpen})
	if err == nil {
		i.enter(Draining)
	}
	return err
}

// closeListeners has new connections refused. What was accepted goes on.
func (e *envoyPart) closeListeners(ctx context.Context, i *instance) error {
	ctx, cancel := context.WithTimeout(ctx, drainCallTime)
	defer cancel()
	return i.admin.DrainListeners(ctx, envoy.Drain{InboundOnly: e.inboundOnly()})
}

// inboundOnly: the application beside a sidecar may go on to call others for as long as the sidecar is there.
func (e *envoyPart) inboundOnly() bool { return e.Config.Identity.Type == bootstrap.Sidecar }
