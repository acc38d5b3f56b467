package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// takeover is one upgrade: a new Envoy is started beside the old one, becomes the one that serves when it is ready, and
// the old one ends. Until the new one is ready the old one serves, and goes on should the new one fail.
type takeover struct {
	*envoyPart
	order  upgradeOrder
	old    *instance
	binary envoy.Binary
	way    string
	served chan struct{}   // closed when the new one serves
	ports  map[uint64]bool // at which the new one was seen to listen

	mu     sync.Mutex
	report upgradeReport
}

func (t *takeover) reported() upgradeReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report
}

// run is the whole of it. The context ends the attempt until the new Envoy serves.
func (t *takeover) run(ctx context.Context) error {
	started := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.upgrades.life, func() { cancel(errors.New("the agent is ending")) })()
	if err := t.pick(ctx); err != nil {
		t.upgrades.results.WithLabelValues(upgradeRefused).Inc()
		return err
	}
	t.Logger.Info("upgrade begins", "from", t.old.binary.Version, "to", t.binary.Version, "path", t.binary.Path, "way", t.way)
	young, err := t.bring(ctx)
	if err != nil {
		t.Logger.Error("upgrade failed", "error", err)
		return refusal{err, http.StatusBadGateway}
	}
	t.mu.Lock()
	t.report = upgradeReport{
		From: t.old.binary.Version.String(), To: t.binary.Version.String(), Way: t.way,
		PID: young.process.PID(), Took: time.Since(started).Round(time.Millisecond),
	}
	t.mu.Unlock()
	t.Logger.Info("upgrade: the new Envoy serves", "version", t.binary.Version, "pid", young.process.PID(), "took", t.report.Took)
	close(t.served)
	until := t.retire(young, t.old)
	t.mu.Lock()
	t.report.Until = until
	t.mu.Unlock()
	return t.settle(young)
}

// settle tells how it ended.
func (t *takeover) settle(young *instance) error {
	young.fallback.Store(nil)
	young.elder.Store(nil)
	select {
	case <-young.process.Done():
		if t.upgrades.life.Err() == nil {
			t.upgrades.results.WithLabelValues(upgradeBack).Inc()
			err := fmt.Errorf("Envoy %s ended while the old one drained: %s; Envoy %s is started again", t.binary.Version, young.end(), t.old.binary.Version)
			return refusal{err, http.StatusBadGateway}
		}
	default:
	}
	t.upgrades.results.WithLabelValues(upgradeDone).Inc()
	t.Logger.Info("upgrade done", "version", t.binary.Version)
	return nil
}

// bring starts the new Envoy and makes it the current one when it is ready; otherwise all is as before.
func (t *takeover) bring(ctx context.Context) (*instance, error) {
	within, cancel := context.WithTimeoutCause(ctx, orElse(t.order.ReadyWithin, defaultReadyWithin),
		fmt.Errorf("not ready within %v", orElse(t.order.ReadyWithin, defaultReadyWithin)))
	defer cancel()
	within, stopWatching := t.whileOldServes(within)
	defer stopWatching()
	young, err := t.startBeside(t.binary)
	if err == nil {
		err = t.awaitReady(within, young)
		if err == nil && t.way == handOver {
			err = t.probation(within, young)
		}
		if err == nil && !t.replaceUnlessEnding(young) {
			err = errors.New("the agent is ending, or the old Envoy has ended")
		}
	}
	if err == nil {
		return young, nil
	}
	err = fmt.Errorf("Envoy %s did not become ready: %w", t.binary.Version, err)
	if young != nil {
		young.process.Stop(atOnce())
		young.leave(t.Logger)
	}
	return nil, t.goBack(err)
}

// whileOldServes ends when the old Envoy does: one is started in its place, or the agent ends, and the attempt would be in
// the way of both.
func (t *takeover) whileOldServes(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-t.old.process.Done():
			cancel(fmt.Errorf("Envoy %s, which served, has ended", t.old.binary.Version))
		}
	}()
	return ctx, func() { cancel(nil) }
}

// startBeside starts another Envoy while the old one runs.
func (t *takeover) startBeside(binary envoy.Binary) (*instance, error) {
	if t.way == handOver {
		return t.startApart(binary, true)
	}
	l := launch{binary: binary, bootstrap: t.old.bootstrap, lineage: t.old.lineage, generation: t.old.generation + 1}
	l.bootstrap.Envoy = numbers(binary)
	if _, err := t.bootstrapFor(l.bootstrap); err != nil {
		return nil, err
	}
	o := t.options(binary)
	o.HotRestart = l.lineage.epoch(l.generation, t.keep()+t.finishTime()+parentMargin)
	l.args = t.arguments(o, binary)
	t.old.adminGone.Store(true) // Envoy closes it at once
	t.old.process.Superseded()
	return t.start(l)
}

// awaitReady waits until the Envoy has its configuration from the control plane and serves.
func (t *takeover) awaitReady(ctx context.Context, i *instance) error {
	reason := "it has not answered yet"
	for {
		if err := t.hasAdmin(ctx, i); err != nil {
			reason = err.Error()
		} else if ok, why := i.check(ctx); ok {
			return nil
		} else {
			reason = why
		}
		select {
		case <-i.process.Done():
			exit := i.end()
			return fmt.Errorf("it ended: %s; its last lines: %q", exit, lastLines(exit.Tail, 5))
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), reason)
		case <-time.After(youngPoll):
		}
	}
}

// hasAdmin says whether the admin address is this Envoy's already: in a hot restart the old one had it.
func (t *takeover) hasAdmin(ctx context.Context, i *instance) error {
	if i.owns.Load() || i.lineage == nil {
		return nil
	}
	fresh := envoy.NewAdmin(i.admin.Address()) // a connection that is kept open would lead to the old one
	defer fresh.Close()
	info, err := fresh.ServerInfo(ctx)
	if err != nil {
		return err
	}
	if info.RestartEpoch != i.generation || info.BaseID != i.lineage.hot.BaseID {
		return errors.New("the old Envoy still has the admin interface")
	}
	i.owns.Store(true)
	return nil
}

// probation watches a new Envoy that shares the traffic for a moment, as long as the old one takes all of it back.
func (t *takeover) probation(ctx context.Context, i *instance) error {
	select {
	case <-i.process.Done():
		return fmt.Errorf("it ended: %s", i.end())
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(probationTime):
		return nil
	}
}

const probationTime = time.Second

// replaceUnlessEnding makes the new one the current one.
func (t *takeover) replaceUnlessEnding(young *instance) bool {
	young.fallback.Store(&t.old.binary)
	young.elder.Store(t.old)
	if t.upgrades.life.Err() != nil || !t.replace(t.old, young, "") {
		return false
	}
	t.leadAdminTo(young)
	return true
}

// goBack makes the old Envoy whole again after an attempt that failed.
func (t *takeover) goBack(failure error) error {
	result := upgradeBack
	defer func() { t.upgrades.results.WithLabelValues(result).Inc() }()
	if ended(t.old) {
		result = upgradeLost
		return failure
	}
	_, err := t.bootstrapFor(t.old.bootstrap)
	if t.way == handOver {
		return errors.Join(fmt.Errorf("%w; Envoy %s goes on untouched", failure, t.old.binary.Version), err)
	}
	err = errors.Join(err, t.old.lineage.hot.Mend())
	if err == nil && t.oldIsWhole() {
		t.old.adminGone.Store(false)
		return fmt.Errorf("%w; Envoy %s goes on untouched", failure, t.old.binary.Version)
	}
	if err == nil && t.upgrades.life.Err() == nil {
		err = t.restore()
	}
	if err != nil {
		result = upgradeLost
		return fmt.Errorf("%w; Envoy %s goes on serving, but without its admin interface: %w", failure, t.old.binary.Version, err)
	}
	return fmt.Errorf("%w; Envoy %s serves again", failure, t.old.binary.Version)
}

// oldIsWhole says whether the old Envoy still has its admin interface: the new one may have failed before it took it.
func (t *takeover) oldIsWhole() bool {
	fresh := envoy.NewAdmin(t.old.admin.Address())
	defer fresh.Close()
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	info, err := fresh.ServerInfo(ctx)
	return err == nil && info.RestartEpoch == t.old.generation && info.BaseID == t.old.lineage.hot.BaseID
}

// restore has the old binary take over from the old process, whose admin interface is closed for good.
func (t *takeover) restore() error {
	t.Logger.Warn("the old Envoy has lost its admin interface to the failed one and is replaced by one of its own version", "version", t.old.binary.Version)
	again, err := t.startBeside(t.old.binary)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(t.upgrades.life, defaultReadyWithin, fmt.Errorf("not ready within %v", defaultReadyWithin))
	defer cancel()
	if err := t.awaitReady(ctx, again); err != nil {
		again.process.Stop(atOnce())
		again.leave(t.Logger)
		return errors.Join(err, t.old.lineage.hot.Mend())
	}
	if !t.replaceUnlessEnding(again) {
		again.process.Stop(atOnce())
		again.leave(t.Logger)
		return errors.New("the agent is ending")
	}
	again.fallback.Store(nil)
	old := t.old
	return t.upgrades.run(func() { t.retire(again, old) })
}

// atOnce is the context to stop what is not worth waiting for.
func atOnce() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (t *takeover) keep() time.Duration {
	return orElse(t.order.Keep, t.Config.Proxy.GetDrainDuration().AsDuration()+keepMargin)
}

func orElse(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func lastLines(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }
