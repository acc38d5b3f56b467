package agent

import (
	"context"
	"maps"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
)

const (
	// idleTime is how long an old Envoy must have had no connection before it is stopped.
	idleTime          = time.Second
	drainPollInterval = 500 * time.Millisecond
	// handshakeTime is how long the agent waits after new connections are steered to the new Envoy. TCP handshakes that
	// began with the old Envoy are then complete. closeTime is how long the agent waits for the old Envoy to close its
	// listeners.
	handshakeTime = time.Second
	closeTime     = 200 * time.Millisecond
	// oldStopTime is the time between SIGTERM and SIGKILL for an old Envoy.
	oldStopTime = 5 * time.Second
	// parentMargin is added to the time after which a hot-restarted Envoy terminates its parent, the old Envoy. The
	// agent therefore stops the old Envoy before the new one would.
	parentMargin = 10 * time.Second
)

// drainAndStopOld drains and stops the old Envoy. why is the reason for which the drain ended.
func (t *upgradeRun) drainAndStopOld(next, old *envoyInstance) (why string) {
	ctx, cancel := t.agentStopContext(context.Background())
	defer cancel()
	old.setState(stateDraining)
	if t.way == HandOver {
		t.drainOld(ctx, next, old)
	}
	why = t.waitOldDrained(ctx, next, old)
	old.setState(stateStopping)
	stop, cancelStop := context.WithTimeout(context.Background(), t.stopTime(ctx))
	defer cancelStop()
	exit := old.process.Stop(stop)
	t.absorbParentMessages(next, old)
	old.waitAndCleanUp(t.Logger)
	if exit.HungThreads == "" {
		t.Logger.Info("the old Envoy has exited", "version", old.binary().Version, "pid", old.process.PID(), "reason", why, "exit", exit.String())
	}
	return why
}

// drainOld steers new connections to the new Envoy and starts the drain of the old one. If the kernel cannot steer new
// connections, connections in an accept queue of the old Envoy may be lost when it closes its listeners.
func (t *upgradeRun) drainOld(ctx context.Context, next, old *envoyInstance) {
	steering, err := envoy.SteerConnections(old.process, next.process)
	defer steering.Stop()
	if err != nil {
		t.Logger.Warn("cannot direct all new connections to the new Envoy; some may reach the old Envoy and be reset when it closes its listeners", "error", err)
	}
	if err := t.requestOldDrain(ctx, old); err != nil {
		t.Logger.Warn("the old Envoy did not start to drain", "error", err)
	}
	if !backoff.Sleep(ctx, handshakeTime) {
		return
	}
	if err := steering.ExcludeOld(); err != nil {
		t.Logger.Warn("cannot direct all new connections to the new Envoy; some may be reset while the old Envoy closes its listeners", "error", err)
	}
	if err := t.callOldDrain(ctx, old, envoy.DrainOptions{}); err != nil {
		t.Logger.Warn("the old Envoy did not close its listeners; the agent closes them", "error", err)
		if err := old.process.CloseListeners(); err != nil {
			t.Logger.Warn("cannot close the listeners of the old Envoy; until it exits, new connections may reach it and get no response", "error", err)
		}
	}
	backoff.Sleep(ctx, closeTime)
}

// requestOldDrain requests a drain of the old Envoy, and retries if that Envoy does not respond, because a stop without
// a drain would cut its active requests. Once the agent is stopping, requestOldDrain does not retry, so that the
// deadline is met.
func (t *upgradeRun) requestOldDrain(ctx context.Context, old *envoyInstance) error {
	ctx, cancel := context.WithTimeout(ctx, t.requestTimeout())
	defer cancel()
	for {
		err := t.callOldDrain(ctx, old, envoy.DrainOptions{Graceful: true})
		if err == nil || hasEnded(old) || t.upgrades.lifeCtx.Err() != nil {
			return err
		}
		t.Logger.Info("retrying the drain of the old Envoy", "pid", old.process.PID(), "error", err)
		if !backoff.Sleep(ctx, drainPollInterval) {
			return err
		}
	}
}

func (t *upgradeRun) callOldDrain(ctx context.Context, old *envoyInstance, d envoy.DrainOptions) error {
	ctx, cancel := context.WithTimeout(ctx, drainCallTimeout)
	defer cancel()
	return old.admin.DrainListeners(ctx, d)
}

// agentStopContext returns a context that ends when the stopping agent must end its Envoys: at the second stop signal,
// or when the time for active requests has passed. The context's cause is the reason. One deadline applies to all
// Envoys.
func (t *upgradeRun) agentStopContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-t.upgrades.lifeCtx.Done():
		}
		select {
		case <-ctx.Done():
		case <-t.ShortenShutdown:
			cancel(errSecondSignal)
		case <-time.After(t.requestTimeout()):
			cancel(errDeadline)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// requestTimeout returns the part of the shutdown deadline that is available for active requests. An old Envoy has the
// same time for its remaining requests after its keep time (--keep) has passed.
func (t *upgradeRun) requestTimeout() time.Duration {
	return t.Config.Shutdown.Deadline - t.Config.Shutdown.Stop
}

// waitOldDrained waits until the old Envoy may be stopped: it has no connection, it has exited, or its keep time has
// passed. It returns the reason. If the agent begins to stop, the rules of the agent's shutdown apply instead of the
// keep time.
func (t *upgradeRun) waitOldDrained(ctx context.Context, next, old *envoyInstance) string {
	idle, stopCounting := t.watchIdle(ctx, next, old)
	defer stopCounting()
	select {
	case <-old.process.Done():
		return "it exited by itself"
	case <-idle:
		return "no connection was left"
	case <-time.After(t.keepTime()):
		if why := t.finishRequests(ctx, old, idle); why != "" {
			return why
		}
	case <-t.upgrades.lifeCtx.Done():
	}
	return t.drainWhileAgentStops(ctx, old, idle)
}

// finishRequests waits for the active requests of an old Envoy whose keep time has passed. It returns "" if the agent
// began to stop.
func (t *upgradeRun) finishRequests(ctx context.Context, old *envoyInstance, idle <-chan struct{}) (why string) {
	enough, stopWatching := t.watchDrained(ctx, old, config.Shutdown{})
	defer stopWatching()
	select {
	case <-old.process.Done():
		return "it exited by itself"
	case <-idle:
		return "no connection was left"
	case why := <-enough:
		return "the time for its idle connections (--keep) has passed: " + why
	case <-time.After(t.requestTimeout()):
		return "the time for its idle connections (--keep) and the time for its remaining requests have passed"
	case <-t.upgrades.lifeCtx.Done():
		return ""
	}
}

// drainWhileAgentStops waits for the old Envoy's traffic while the agent is stopping. It applies the same rules as to
// the new Envoy.
func (t *upgradeRun) drainWhileAgentStops(ctx context.Context, old *envoyInstance, idle <-chan struct{}) string {
	if t.requests.skipDrain.isSet() {
		return "the agent is stopping, and a drain was requested before"
	}
	enough, stopWatching := t.watchDrained(ctx, old, t.Config.Shutdown)
	defer stopWatching()
	select {
	case <-old.process.Done():
	case <-idle:
	case why := <-enough:
		return "the agent is stopping: " + why
	case <-ctx.Done():
		return "the agent is stopping: " + context.Cause(ctx).Error()
	case <-t.requests.quit.done():
	}
	return "the agent is stopping"
}

// watchDrained sends a reason on enough when the rules of plan allow the old Envoy's drain to end, even if connections
// are left. If the agent cannot count the traffic, it sends nothing.
func (t *upgradeRun) watchDrained(ctx context.Context, old *envoyInstance, plan config.Shutdown) (enough <-chan string, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan string, 1), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		look, end := t.oldTrafficCounter(old)
		defer end()
		var c trafficSample
		for backoff.Sleep(ctx, drainPollInterval) {
			seen, err := look(ctx)
			if err != nil {
				t.Logger.Debug("cannot count the traffic of the old Envoy", "error", err)
				continue
			}
			c = trafficSample{activeTraffic: seen}.withHistory(c, time.Since(began), 0)
			if why, ok := checkDrained(plan, c, time.Since(began)); ok {
				found <- why
				return
			}
		}
	}()
	return found, func() { cancel(); <-done }
}

// oldTrafficCounter returns look, which counts the old Envoy's traffic, and end, which releases the resources of look.
func (t *upgradeRun) oldTrafficCounter(old *envoyInstance) (look func(context.Context) (activeTraffic, error), end func()) {
	if t.way == HandOver {
		return func(ctx context.Context) (activeTraffic, error) { return old.countTraffic(ctx, t.ownStats) }, func() {}
	}
	parent, err := old.hotRestart.options(old.generation, 0).ConnectParent()
	if err != nil {
		return func(context.Context) (activeTraffic, error) { return activeTraffic{}, err }, func() {}
	}
	return func(ctx context.Context) (activeTraffic, error) {
		gauges, err := parent.Gauges(ctx)
		if err != nil {
			return activeTraffic{}, err
		}
		maps.DeleteFunc(gauges, func(name string, _ uint64) bool { return !trafficStatsPattern().MatchString(name) })
		return old.addUnreadTCP(sumTraffic(gauges, t.ownStats))
	}, func() { _ = parent.Close() }
}

// stopTime returns the time between SIGTERM and SIGKILL for the old Envoy.
func (t *upgradeRun) stopTime(ctx context.Context) time.Duration {
	switch {
	case context.Cause(ctx) == errSecondSignal:
		return shortenedStopTime
	case t.upgrades.lifeCtx.Err() != nil:
		return min(oldStopTime, t.Config.Shutdown.Stop)
	}
	return oldStopTime
}

// watchIdle closes the returned channel when the old Envoy has had no connection for idleTime. While the agent is
// stopping, one count without connections is sufficient.
func (t *upgradeRun) watchIdle(ctx context.Context, next, old *envoyInstance) (idle <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for since := time.Now(); backoff.Sleep(ctx, drainPollInterval); {
			if n, err := t.countOldClients(ctx, next, old); err != nil || n > 0 {
				since = time.Now()
			} else if time.Since(since) > idleTime || t.upgrades.lifeCtx.Err() != nil { // no new connections while the agent stops
				close(found)
				return
			}
		}
	}()
	return found, func() { cancel(); <-done }
}

// countOldClients counts the old Envoy's connections and requests. After a hot restart, the old Envoy cannot be
// queried, so the agent counts its sockets.
func (t *upgradeRun) countOldClients(ctx context.Context, next, old *envoyInstance) (uint64, error) {
	if t.way == HandOver {
		left, err := old.countTraffic(ctx, t.ownStats)
		return left.connections + left.requests, err
	}
	if now, err := next.process.ListenPorts(); err == nil && !hasEnded(next) {
		maps.Copy(t.ports, now) // copied before the new Envoy exits, because an Envoy that stops closes these sockets
	}
	c := t.Config
	n, err := old.process.CountClients(t.ports, uint32(c.Proxy.GetProxyAdminPort()), c.Envoy.ReadinessPort, c.Envoy.PrometheusPort)
	return uint64(n), err
}

// absorbParentMessages receives the messages that a hot-restarted Envoy sends to its parent. The parent has exited, and
// without a receiver Envoy would abort.
func (t *upgradeRun) absorbParentMessages(next, old *envoyInstance) {
	if t.way == HandOver || old.hotRestart == nil {
		return
	}
	end, err := old.hotRestart.options(old.generation, 0).AbsorbParentMessages()
	if err != nil {
		t.Logger.Error("cannot receive the hot restart messages for the old Envoy, which has exited; the new Envoy may abort", "error", err)
		return
	}
	if t.upgrades.goUntilClosed(func() { <-next.process.Done(); end() }) != nil {
		end()
	}
}

// hasEnded reports whether the process has exited.
func hasEnded(i *envoyInstance) bool {
	select {
	case <-i.process.Done():
		return true
	default:
		return false
	}
}
