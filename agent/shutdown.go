package agent

import (
	"context"
	"errors"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// drainCallTimeout is the timeout of each call to Envoy that starts the drain or closes its listeners.
	drainCallTimeout = 2 * time.Second
	// serveCheckTimeout is the timeout of the check whether an Envoy that is still starting has clients.
	serveCheckTimeout = 500 * time.Millisecond
	// maxStopAfterDrain limits the time between SIGTERM and SIGKILL for Envoy. After a second stop signal,
	// shortenedStopTime is the limit instead.
	maxStopAfterDrain = 5 * time.Second
	shortenedStopTime = time.Second
)

// Reasons for a premature end of a drain.
var (
	errSecondSignal = errors.New("second stop signal")
	errQuit         = errors.New("requested by /quitquitquit")
	errEnvoyExited  = errors.New("Envoy exited during the drain")
	errDeadline     = errors.New("the shutdown deadline has passed")
)

// shutdown stops one Envoy: it waits for the pre-drain delay, drains Envoy, waits for its clients, and sends SIGTERM.
type shutdown struct {
	*envoySupervisor
	instance     *envoyInstance
	plan         config.Shutdown
	deadline     time.Time
	cutsRequests bool // active requests were cut
}

// stop drains and stops an Envoy before the shutdown deadline.
func (e *envoySupervisor) stop(i *envoyInstance) {
	plan := e.Config.Shutdown
	e.requests.drain.set()
	deadline, cancel := context.WithTimeout(context.Background(), plan.Deadline)
	defer cancel()
	n := &shutdown{envoySupervisor: e, instance: i, plan: plan}
	n.deadline, _ = deadline.Deadline()

	why := n.skipReason()
	if why == "" {
		e.Logger.Info("shutting down", "deadline", plan.Deadline, "preDelay", plan.PreDelay, "minimum", plan.Minimum, "linger", plan.Linger, "quiet", plan.Quiet, "untilIdle", plan.WhenIdle)
		why = n.drain(deadline)
	}
	if n.cutsRequests {
		n.reportBeforeEnd(deadline, why)
	}
	e.Logger.Info("stopping Envoy", "reason", why)
	last, cancelLast := n.stopContext(deadline)
	defer cancelLast()
	i.setState(stateStopping)
	i.process.Stop(last)
}

// skipReason returns the reason why the drain is skipped, or "" if it is not skipped.
func (n *shutdown) skipReason() string {
	switch {
	case n.requests.quit.isSet():
		return errQuit.Error()
	case n.requests.skipDrain.isSet():
		return "a drain was requested before through the status port"
	}
	return ""
}

// drain drains Envoy and returns the reason why the drain ended. It also waits for the clients of an old Envoy that a
// hot restart has just replaced, because the new Envoy stops the old one too when it receives SIGTERM.
func (n *shutdown) drain(deadline context.Context) string {
	ctx, cancel := n.drainContext(deadline)
	defer cancel()
	why := n.drainCurrent(ctx)
	parent := n.instance.predecessor.Load()
	if parent == nil || hasEnded(parent) {
		return why
	}
	n.Logger.Info("waiting for the previous Envoy, which still drains", "pid", parent.process.PID())
	select {
	case <-parent.process.Done():
		return why
	case <-ctx.Done():
		return context.Cause(ctx).Error()
	}
}

func (n *shutdown) drainCurrent(ctx context.Context) string {
	if !n.mayHaveClients(ctx) {
		if why := n.describeNeverReady(); why != "" {
			n.reportBeforeEnd(ctx, why)
		}
		return "Envoy has not served any client yet"
	}
	if !backoff.Sleep(ctx, n.preDelayLeft()) {
		return context.Cause(ctx).Error()
	}
	if err := n.startEnvoyDrain(ctx, n.instance, false); err != nil {
		n.Logger.Warn("Envoy did not start to drain", "error", err)
		n.instance.setState(stateDraining) // its clients may receive a request to disconnect, although the call failed
	}
	return n.waitDrained(ctx)
}

// drainContext returns a context that ends when the drain must end: at the deadline minus the time that is reserved for
// Envoy's exit, after a second stop signal, or when Envoy exits.
func (n *shutdown) drainContext(deadline context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelTime := context.WithTimeoutCause(deadline, n.plan.Deadline-n.plan.Stop, errDeadline)
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-n.ShortenShutdown:
			cancel(errSecondSignal)
		case <-n.requests.quit.done():
			cancel(errQuit)
		case <-n.instance.process.Done():
			cancel(errEnvoyExited)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil); cancelTime() }
}

// mayHaveClients reports whether Envoy may have clients. It returns true if Envoy's admin interface accepts connections
// but does not respond.
func (n *shutdown) mayHaveClients(ctx context.Context) bool {
	if state, _ := n.instance.status(); state != stateStarting {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, serveCheckTimeout)
	defer cancel()
	if ok, _ := n.instance.checkReady(ctx); ok {
		return true
	}
	seen, err := n.instance.countTraffic(ctx, n.ownStats)
	if err != nil {
		return !envoy.IsNotListening(err)
	}
	return !seen.isZero()
}

// preDelayLeft returns the remaining pre-drain delay. If a drain was requested earlier, the time since then counts.
func (n *shutdown) preDelayLeft() time.Duration {
	if state, since := n.instance.status(); state == stateDraining {
		return n.plan.PreDelay - time.Since(since)
	}
	return n.plan.PreDelay
}

// stopContext returns a context for the time between SIGTERM and SIGKILL. It ends at the deadline, or earlier after a
// second stop signal.
func (n *shutdown) stopContext(deadline context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(deadline, maxStopAfterDrain)
	go func() {
		select {
		case <-n.ShortenShutdown:
			backoff.Sleep(ctx, shortenedStopTime)
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// startEnvoyDrain starts Envoy's graceful drain, unless it has begun. Envoy then adds a request to disconnect to its
// responses. Envoy accepts new connections until its drain time has passed or, if stayOpen is true, until it exits.
func (e *envoySupervisor) startEnvoyDrain(ctx context.Context, i *envoyInstance, stayOpen bool) error {
	if state, _ := i.status(); state == stateDraining {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, drainCallTimeout)
	defer cancel()
	err := i.admin.DrainListeners(ctx, envoy.DrainOptions{InboundOnly: e.inboundOnly(), Graceful: true, SkipExit: stayOpen})
	if err == nil {
		i.setState(stateDraining)
	}
	return err
}

// closeListeners makes Envoy reject new connections. It does not affect existing connections.
func (e *envoySupervisor) closeListeners(ctx context.Context, i *envoyInstance) error {
	ctx, cancel := context.WithTimeout(ctx, drainCallTimeout)
	defer cancel()
	return i.admin.DrainListeners(ctx, envoy.DrainOptions{InboundOnly: e.inboundOnly()})
}

// inboundOnly reports whether a drain affects inbound traffic only. In a sidecar, the application may send requests
// until the sidecar exits.
func (e *envoySupervisor) inboundOnly() bool { return e.Config.Identity.Type == bootstrap.Sidecar }
