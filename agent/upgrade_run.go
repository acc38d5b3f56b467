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

// upgradeRun is one upgrade. It starts a new Envoy while the old one serves, makes the new one current when it is
// ready, and stops the old one. If the new Envoy fails, the old one continues to serve.
type upgradeRun struct {
	*envoySupervisor
	request UpgradeRequest
	old     *envoyInstance
	binary  envoy.Binary
	way     string
	served  chan struct{}   // closed when the new Envoy serves
	ports   map[uint64]bool // ports on which the new Envoy has listened

	mu     sync.Mutex
	report UpgradeReport
}

func (t *upgradeRun) reportSnapshot() UpgradeReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.report
}

// run performs the upgrade. The end of ctx cancels the upgrade only until the new Envoy serves.
func (t *upgradeRun) run(ctx context.Context) error {
	started := time.Now()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(t.upgrades.lifeCtx, func() { cancel(errors.New("the agent is stopping")) })()
	if err := t.prepare(ctx); err != nil {
		t.upgrades.results.WithLabelValues(upgradeRefused).Inc()
		return err
	}
	t.Logger.Info("upgrade started", "from", t.old.binary().Version, "to", t.binary.Version, "path", t.binary.Path, "way", t.way)
	t.warnOfAdvisories(t.binary)
	next, err := t.startNew(ctx)
	if err != nil {
		t.Logger.Error("upgrade failed", "error", err)
		return httpError{err, http.StatusBadGateway}
	}
	t.mu.Lock()
	t.report = UpgradeReport{
		From: t.old.binary().Version.String(), To: t.binary.Version.String(), Way: t.way,
		PID: next.process.PID(), Took: time.Since(started).Round(time.Millisecond),
	}
	t.mu.Unlock()
	t.Logger.Info("upgrade: the new Envoy serves", "version", t.binary.Version, "pid", next.process.PID(), "took", t.report.Took)
	close(t.served)
	until := t.drainAndStopOld(next, t.old)
	t.mu.Lock()
	t.report.Until = until
	t.mu.Unlock()
	return t.recordResult(next)
}

// recordResult records the result of the upgrade. It returns an error if the new Envoy has exited.
func (t *upgradeRun) recordResult(next *envoyInstance) error {
	next.fallback.Store(nil)
	next.predecessor.Store(nil)
	select {
	case <-next.process.Done():
		if t.upgrades.lifeCtx.Err() == nil {
			t.upgrades.results.WithLabelValues(upgradeBack).Inc()
			err := fmt.Errorf("Envoy %s ended while the old one drained: %s; restarting Envoy %s", t.binary.Version, next.waitEnd(), t.old.binary().Version)
			return httpError{err, http.StatusBadGateway}
		}
	default:
	}
	t.upgrades.results.WithLabelValues(upgradeDone).Inc()
	t.Logger.Info("upgrade done", "version", t.binary.Version)
	return nil
}

// startNew starts the new Envoy and makes it the current one when it is ready. On failure it rolls back.
func (t *upgradeRun) startNew(ctx context.Context) (*envoyInstance, error) {
	within, cancel := context.WithTimeoutCause(ctx, durationOr(t.request.ReadyWithin, DefaultReadyWithin),
		fmt.Errorf("not ready within %v", durationOr(t.request.ReadyWithin, DefaultReadyWithin)))
	defer cancel()
	within, stopWatching := t.contextWhileOldRuns(within)
	defer stopWatching()
	next, err := t.startAlongside(t.binary)
	if err == nil {
		err = t.awaitReady(within, next)
		if err == nil && t.way == HandOver {
			err = t.observe(within, next)
		}
		if err == nil && !t.replaceUnlessEnding(next) {
			err = errors.New("the agent is stopping, or the old Envoy has exited")
		}
	}
	if err == nil {
		return next, nil
	}
	err = fmt.Errorf("Envoy %s did not become ready: %w", t.binary.Version, err)
	if next != nil {
		next.process.Stop(canceledContext())
		next.waitAndCleanUp(t.Logger)
	}
	return nil, t.rollBack(err)
}

// contextWhileOldRuns returns a context that ends when the old Envoy exits. After that exit, the agent stops or
// restarts an Envoy, and the upgrade must not interfere.
func (t *upgradeRun) contextWhileOldRuns(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ctx.Done():
		case <-t.old.process.Done():
			cancel(fmt.Errorf("the serving Envoy %s has exited", t.old.binary().Version))
		}
	}()
	return ctx, func() { cancel(nil) }
}

// startAlongside starts another Envoy while the old one runs.
func (t *upgradeRun) startAlongside(binary envoy.Binary) (*envoyInstance, error) {
	if t.way == HandOver {
		return t.startIndependent(binary, true)
	}
	l := launchSpec{binary: binary, bootstrap: t.old.bootstrap, hotRestart: t.old.hotRestart, generation: t.old.generation + 1}
	l.bootstrap.Envoy = versionNumbers(binary)
	if _, err := t.ensureBootstrap(l.bootstrap); err != nil {
		return nil, err
	}
	o := t.options(binary)
	o.HotRestart = l.hotRestart.options(l.generation, t.keepTime()+t.requestTimeout()+parentMargin)
	l.args = t.envoyArgs(o, binary)
	t.old.adminLost.Store(true) // the old Envoy closes its admin listener immediately
	t.old.process.MarkReplaced()
	return t.start(l)
}

// awaitReady waits until i has received its configuration from the control plane and is ready.
func (t *upgradeRun) awaitReady(ctx context.Context, i *envoyInstance) error {
	reason := "Envoy has not responded yet"
	for {
		if err := t.checkAdminOwner(ctx, i); err != nil {
			reason = err.Error()
		} else if ok, why := i.checkReady(ctx); ok {
			return nil
		} else {
			reason = why
		}
		select {
		case <-i.process.Done():
			exit := i.waitEnd()
			return fmt.Errorf("it ended: %s; its last lines: %q", exit, lastLines(exit.Tail, 5))
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), reason)
		case <-time.After(upgradePollInterval):
		}
	}
}

// checkAdminOwner returns an error if an Envoy other than i still listens on the admin address. This happens during a
// hot restart.
func (t *upgradeRun) checkAdminOwner(ctx context.Context, i *envoyInstance) error {
	if i.ownsAdmin.Load() || i.hotRestart == nil {
		return nil
	}
	fresh := envoy.NewAdmin(i.admin.Address()) // a pooled connection would lead to the old Envoy
	defer fresh.Close()
	info, err := fresh.ServerInfo(ctx)
	if err != nil {
		return err
	}
	if info.RestartEpoch != i.generation || info.BaseID != i.hotRestart.config.BaseID {
		return errors.New("the old Envoy still listens on the admin address")
	}
	i.ownsAdmin.Store(true)
	return nil
}

// observe waits for probationTime, and fails if the new Envoy exits. A failure within that time affects no traffic,
// because the old Envoy continues to serve.
func (t *upgradeRun) observe(ctx context.Context, i *envoyInstance) error {
	select {
	case <-i.process.Done():
		return fmt.Errorf("it ended: %s", i.waitEnd())
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(probationTime):
		return nil
	}
}

const probationTime = time.Second

// replaceUnlessEnding makes next the current instance. It returns false if the agent is stopping or the old Envoy has
// exited.
func (t *upgradeRun) replaceUnlessEnding(next *envoyInstance) bool {
	next.fallback.Store(new(t.old.binary()))
	next.predecessor.Store(t.old)
	if t.upgrades.lifeCtx.Err() != nil || !t.replaceCurrent(t.old, next, "") {
		return false
	}
	t.forwardAdminTo(next)
	return true
}

// rollBack restores the old Envoy after a failed upgrade. It returns the error failure, extended by the result of the
// rollback.
func (t *upgradeRun) rollBack(failure error) error {
	result := upgradeBack
	defer func() { t.upgrades.results.WithLabelValues(result).Inc() }()
	if hasEnded(t.old) {
		result = upgradeLost
		return failure
	}
	_, err := t.ensureBootstrap(t.old.bootstrap)
	if t.way == HandOver {
		return errors.Join(fmt.Errorf("%w; Envoy %s continues unchanged", failure, t.old.binary().Version), err)
	}
	err = errors.Join(err, t.old.hotRestart.config.ClearInitializingFlag())
	if err == nil && t.oldHasAdmin() {
		t.old.adminLost.Store(false)
		return fmt.Errorf("%w; Envoy %s continues unchanged", failure, t.old.binary().Version)
	}
	if err == nil && t.upgrades.lifeCtx.Err() == nil {
		err = t.restartOld()
	}
	if err != nil {
		result = upgradeLost
		return fmt.Errorf("%w; Envoy %s continues to serve, but without its admin interface: %w", failure, t.old.binary().Version, err)
	}
	return fmt.Errorf("%w; Envoy %s serves again", failure, t.old.binary().Version)
}

// oldHasAdmin reports whether the old Envoy still listens on the admin address. This is the case if the new Envoy
// failed before the old one closed its admin listener.
func (t *upgradeRun) oldHasAdmin() bool {
	fresh := envoy.NewAdmin(t.old.admin.Address())
	defer fresh.Close()
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	info, err := fresh.ServerInfo(ctx)
	return err == nil && info.RestartEpoch == t.old.generation && info.BaseID == t.old.hotRestart.config.BaseID
}

// restartOld starts a new process of the old version by hot restart, because the old process cannot open its admin
// listener again.
func (t *upgradeRun) restartOld() error {
	t.Logger.Warn("the old Envoy lost its admin listener to the failed new one; restarting the old version", "version", t.old.binary().Version)
	again, err := t.startAlongside(t.old.binary())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(t.upgrades.lifeCtx, DefaultReadyWithin, fmt.Errorf("not ready within %v", DefaultReadyWithin))
	defer cancel()
	if err := t.awaitReady(ctx, again); err != nil {
		again.process.Stop(canceledContext())
		again.waitAndCleanUp(t.Logger)
		return errors.Join(err, t.old.hotRestart.config.ClearInitializingFlag())
	}
	if !t.replaceUnlessEnding(again) {
		again.process.Stop(canceledContext())
		again.waitAndCleanUp(t.Logger)
		return errors.New("the agent is stopping")
	}
	again.fallback.Store(nil)
	old := t.old
	return t.upgrades.goWhileRunning(func() { t.drainAndStopOld(again, old) })
}

// canceledContext returns a context that has ended. If Stop receives this context, it sends SIGKILL without a grace
// period.
func canceledContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func (t *upgradeRun) keepTime() time.Duration {
	return durationOr(t.request.Keep, t.Config.Proxy.GetDrainDuration().AsDuration()+keepMargin)
}

func durationOr(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}

func lastLines(lines []string, n int) []string { return lines[max(0, len(lines)-n):] }
