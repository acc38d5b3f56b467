package agent

import (
	"context"
	"maps"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

const (
	// quiet is for how long an old Envoy has to have no connection.
	quiet      = time.Second
	retirePoll = 500 * time.Millisecond
	// besides is how long an old Envoy still takes the connections whose handshakes began before they were steered away
	// from it, and closing what it has to close its listeners.
	besides = time.Second
	closing = 200 * time.Millisecond
	// retireStop is what an old Envoy has to end after SIGTERM.
	retireStop = 5 * time.Second
	// parentMargin is how much later than the agent a new Envoy would end the one that it took over from.
	parentMargin = 10 * time.Second
)

// retire lets the old Envoy finish what it has and ends it. It says why it did not wait any longer.
func (t *takeover) retire(young, old *instance) (why string) {
	ctx, cancel := t.untilTheEnd(context.Background())
	defer cancel()
	old.enter(Draining)
	if t.way == handOver {
		t.drainOld(ctx, young, old)
	}
	why = t.awaitLeaving(ctx, young, old)
	old.enter(Stopping)
	stop, cancelStop := context.WithTimeout(context.Background(), t.stopTime(ctx))
	defer cancelStop()
	exit := old.process.Stop(stop)
	t.standIn(young, old)
	old.leave(t.Logger)
	if exit.Remains == "" {
		t.Logger.Info("the old Envoy has ended", "version", old.binary.Version, "pid", old.process.PID(), "because", why, "exit", exit.String())
	}
	return why
}

// drainOld leaves new connections to the new Envoy, and tells the clients of all others to go. In a kernel that does not
// let itself be told to prefer the new one, connections may be lost that wait to be accepted when the old one closes.
func (t *takeover) drainOld(ctx context.Context, young, old *instance) {
	steering, err := envoy.Steer(old.process, young.process)
	defer steering.End()
	if err != nil {
		t.Logger.Warn("new connections may still go to the old Envoy until it closes its listeners, and a few be reset then", "error", err)
	}
	if err := t.urge(ctx, old); err != nil {
		t.Logger.Warn("the old Envoy was not told to drain", "error", err)
	}
	if !sleep(ctx, besides) {
		return
	}
	if err := steering.Narrow(); err != nil {
		t.Logger.Warn("connections could not be steered to one socket of the new Envoy", "error", err)
	}
	if err := t.tellOld(ctx, old, envoy.Drain{}); err != nil {
		t.Logger.Warn("the old Envoy was not told to close its listeners, so the agent does", "error", err)
		if err := old.process.Unlisten(); err != nil {
			t.Logger.Warn("new connections may go to the old Envoy until it ends, which does not answer", "error", err)
		}
	}
	sleep(ctx, closing)
}

// urge tells the old Envoy's clients to go. One that is slow to answer is asked again: nothing is lost meanwhile, but all
// that it serves would be if it ended before. Once the agent is ending, what comes next sees to the deadline.
func (t *takeover) urge(ctx context.Context, old *instance) error {
	ctx, cancel := context.WithTimeout(ctx, t.finishTime())
	defer cancel()
	for {
		err := t.tellOld(ctx, old, envoy.Drain{Graceful: true})
		if err == nil || ended(old) || t.upgrades.life.Err() != nil {
			return err
		}
		t.Logger.Info("the old Envoy is asked again to drain", "pid", old.process.PID(), "error", err)
		if !sleep(ctx, retirePoll) {
			return err
		}
	}
}

func (t *takeover) tellOld(ctx context.Context, old *instance, d envoy.Drain) error {
	ctx, cancel := context.WithTimeout(ctx, drainCallTime)
	defer cancel()
	return old.admin.DrainListeners(ctx, d)
}

// untilTheEnd ends when an agent that is told to end has to stop its Envoys, and says why: one deadline is for all that is
// left to do.
func (t *takeover) untilTheEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
			return
		case <-t.upgrades.life.Done():
		}
		select {
		case <-ctx.Done():
		case <-t.Hasten:
			cancel(errHastened)
		case <-time.After(t.finishTime()):
			cancel(errTimeOver)
		}
	}()
	return ctx, func() { cancel(nil) }
}

// finishTime is what an end leaves for requests. An old Envoy has as much beyond its time for those that it still serves.
func (t *takeover) finishTime() time.Duration {
	return t.Config.Shutdown.Deadline - t.Config.Shutdown.Stop
}

// awaitLeaving waits until the old Envoy, whose clients were told to go, has nothing left to do, or is out of time.
func (t *takeover) awaitLeaving(ctx context.Context, young, old *instance) string {
	idle, stopCounting := t.watchIdle(ctx, young, old)
	defer stopCounting()
	select {
	case <-old.process.Done():
		return "it ended by itself"
	case <-idle:
		return "no connection was left"
	case <-time.After(t.keep()):
		if why := t.finish(ctx, old, idle); why != "" {
			return why
		}
	case <-t.upgrades.life.Done():
	}
	return t.lastLeave(ctx, old, idle)
}

// finish lets an Envoy that is out of time answer the requests that it has. It says nothing when the agent is ending.
func (t *takeover) finish(ctx context.Context, old *instance, idle <-chan struct{}) (why string) {
	enough, stopAsking := t.watchEnough(ctx, old, ShutdownConfig{})
	defer stopAsking()
	select {
	case <-old.process.Done():
		return "it ended by itself"
	case <-idle:
		return "no connection was left"
	case why := <-enough:
		return "its time was over: " + why
	case <-time.After(t.finishTime()):
		return "its time was over, and that of the requests that it still had"
	case <-t.upgrades.life.Done():
		return ""
	}
}

// lastLeave waits on when the agent is ending: what the old Envoy serves has as much time as what the new one does.
func (t *takeover) lastLeave(ctx context.Context, old *instance, idle <-chan struct{}) string {
	if t.orders.endAtOnce.given() {
		return "the agent is ending, and was told to drain before"
	}
	enough, stopAsking := t.watchEnough(ctx, old, t.Config.Shutdown)
	defer stopAsking()
	select {
	case <-old.process.Done():
	case <-idle:
	case why := <-enough:
		return "the agent is ending: " + why
	case <-ctx.Done():
		return "the agent is ending: " + context.Cause(ctx).Error()
	case <-t.orders.quit.done():
	}
	return "the agent is ending"
}

// watchEnough tells when the old Envoy's drain may end though it has connections, by the rule of a plan. An Envoy that does
// not tell what it serves is left its time.
func (t *takeover) watchEnough(ctx context.Context, old *instance, plan ShutdownConfig) (enough <-chan string, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan string, 1), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(done)
		look, end := t.oldLoad(old)
		defer end()
		var c count
		for sleep(ctx, retirePoll) {
			seen, err := look(ctx)
			if err != nil {
				t.Logger.Debug("what the old Envoy serves is not known", "error", err)
				continue
			}
			c = count{load: seen}.after(c, time.Since(began))
			if why, ok := plan.enough(c, time.Since(began)); ok {
				found <- why
				return
			}
		}
	}()
	return found, func() { cancel(); <-done }
}

// oldLoad gives the way to count what the old Envoy serves.
func (t *takeover) oldLoad(old *instance) (look func(context.Context) (load, error), end func()) {
	if t.way == handOver {
		return func(ctx context.Context) (load, error) { return old.load(ctx, t.own) }, func() {}
	}
	elder, err := old.lineage.epoch(old.generation, 0).Elder()
	if err != nil {
		return func(context.Context) (load, error) { return load{}, err }, func() {}
	}
	return func(ctx context.Context) (load, error) {
		gauges, err := elder.Gauges(ctx)
		if err != nil {
			return load{}, err
		}
		maps.DeleteFunc(gauges, func(name string, _ uint64) bool { return !isLoad().MatchString(name) })
		return old.addUntaken(countLoad(gauges, t.own))
	}, func() { _ = elder.Close() }
}

// stopTime is what the old Envoy has to end after SIGTERM.
func (t *takeover) stopTime(ctx context.Context) time.Duration {
	switch {
	case context.Cause(ctx) == errHastened:
		return hastened
	case t.upgrades.life.Err() != nil:
		return min(retireStop, t.Config.Shutdown.Stop)
	}
	return retireStop
}

// watchIdle tells when the old Envoy has had no connection for a while.
func (t *takeover) watchIdle(ctx context.Context, young, old *instance) (idle <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	found, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for since := time.Now(); sleep(ctx, retirePoll); {
			if n, err := t.leftovers(ctx, young, old); err != nil || n > 0 {
				since = time.Now()
			} else if time.Since(since) > quiet || t.upgrades.life.Err() != nil { // nothing comes any more
				close(found)
				return
			}
		}
	}()
	return found, func() { cancel(); <-done }
}

// leftovers counts what the old Envoy still serves. After a hot restart it cannot be asked itself.
func (t *takeover) leftovers(ctx context.Context, young, old *instance) (uint64, error) {
	if t.way == handOver {
		left, err := old.load(ctx, t.own)
		return left.connections + left.requests, err
	}
	if now, err := young.process.Listens(); err == nil && !ended(young) {
		maps.Copy(t.ports, now) // it closes them when it is told to end itself
	}
	c := t.Config
	n, err := old.process.Clients(t.ports, uint32(c.Proxy.GetProxyAdminPort()), c.Envoy.ReadinessPort, c.Envoy.PrometheusPort)
	return uint64(n), err
}

// standIn lets the new Envoy outlive the old one, whichever way that ended, when it took over by hot restart.
func (t *takeover) standIn(young, old *instance) {
	if t.way == handOver || old.lineage == nil {
		return
	}
	end, err := old.lineage.epoch(old.generation, 0).StandIn()
	if err != nil {
		t.Logger.Error("the new Envoy may abort when it finds that the old one is gone", "error", err)
		return
	}
	if t.upgrades.keep(func() { <-young.process.Done(); end() }) != nil {
		end()
	}
}

// ended says whether the process is gone.
func ended(i *instance) bool {
	select {
	case <-i.process.Done():
		return true
	default:
		return false
	}
}
