package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// Upgrade modes.
const (
	// HotRestart: the new Envoy receives the listening sockets, and the old Envoy drains by itself.
	HotRestart = "hot-restart"
	// HandOver: both Envoys listen on the same ports (SO_REUSEPORT), and the agent drains the old one.
	HandOver = "hand-over"
)

const (
	// DefaultReadyWithin is the default of UpgradeRequest.ReadyWithin.
	DefaultReadyWithin = 30 * time.Second
	// keepMargin is added to Envoy's drain time; the sum is the default of UpgradeRequest.Keep.
	keepMargin = 15 * time.Second
	// upgradePollInterval is the interval between readiness checks of a new Envoy.
	upgradePollInterval = 25 * time.Millisecond
)

// UpgradeRequest is the body of POST /upgrade.
type UpgradeRequest struct {
	// Path is the path of the new binary.
	Path string `json:"path"`
	// Way is hot-restart or hand-over. If empty, the agent prefers hot-restart.
	Way string `json:"way,omitempty"`
	// ReadyWithin is the maximum time until the new Envoy is ready. Keep is how long idle connections to the old Envoy
	// may stay open after that.
	ReadyWithin time.Duration `json:"readyWithin,omitempty"`
	Keep        time.Duration `json:"keep,omitempty"`
	// Wait delays the response until the old Envoy has exited.
	Wait bool `json:"wait,omitempty"`
}

// UpgradeReport is the response to POST /upgrade.
type UpgradeReport struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	Way   string        `json:"way"`
	PID   int           `json:"pid"`
	Took  time.Duration `json:"took"`            // time until the new Envoy was ready
	Until string        `json:"until,omitempty"` // why the old Envoy was stopped
}

// upgradeManager holds the state of upgrades, and runs background jobs for the envoySupervisor.
type upgradeManager struct {
	results        *prometheus.CounterVec
	adminForwarder adminForwarder

	mu   sync.Mutex
	busy string // description of the running upgrade; empty if none runs
	// lifeCtx ends when the agent begins to stop, lateCtx when the envoySupervisor has stopped.
	lifeCtx, lateCtx context.Context
	closed           bool
	jobs             sync.WaitGroup
	launched         int              // number of Envoys that the agent has started
	writtenVariant   bootstrapVariant // the variant of the bootstrap that the file contains
}

// Results of upgrades.
const (
	upgradeDone    = "done"
	upgradeRefused = "refused"
	upgradeBack    = "went-back"
	upgradeLost    = "lost" // the upgrade failed, and the agent could not fully restore the old Envoy
)

func (e *envoySupervisor) registerUpgrades() error {
	e.upgrades.writtenVariant = variantOf(e.bootstrap)
	e.upgrades.results = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_envoy_upgrades_total",
		Help: "Upgrades of Envoy by result: done, refused, went-back (rolled back to the old Envoy), lost (the old Envoy was not fully restored).",
	}, []string{"result"})
	for _, result := range []string{upgradeDone, upgradeRefused, upgradeBack, upgradeLost} {
		e.upgrades.results.WithLabelValues(result)
	}
	epoch := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "istio_agent_envoy_epoch",
		Help: "Number of Envoys that this agent started before the current one.",
	}, func() float64 {
		if i := e.currentInstance(); i != nil {
			return float64(i.epoch)
		}
		return 0
	})
	e.control.Handle("POST /upgrade", jsonHandler(e.handleUpgrade))
	return errors.Join(e.metrics.Register(e.upgrades.results), e.metrics.Register(epoch))
}

// refuseUpgrade handles POST /upgrade in an agent that runs no Envoy.
func (a *Agent) refuseUpgrade(context.Context, UpgradeRequest) (UpgradeReport, error) {
	return UpgradeReport{}, errors.New("this agent runs no Envoy: DISABLE_ENVOY is set")
}

// start permits upgrades until life ends. The returned function cancels the background jobs that still run, and waits
// for them.
func (u *upgradeManager) start(life context.Context) (stop func()) {
	late, cancel := context.WithCancel(context.WithoutCancel(life))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lifeCtx, u.lateCtx = life, late
	return func() {
		u.mu.Lock()
		u.closed = true
		u.mu.Unlock()
		cancel()
		u.jobs.Wait()
	}
}

// goWhileRunning runs a job in a goroutine. It fails if the agent is stopping.
func (u *upgradeManager) goWhileRunning(job func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || u.lifeCtx == nil || u.lifeCtx.Err() != nil {
		return errors.New("the agent is stopping")
	}
	u.jobs.Go(job)
	return nil
}

// goUntilClosed runs a job in a goroutine, even while the agent is stopping. It fails after the envoySupervisor has
// stopped.
func (u *upgradeManager) goUntilClosed(job func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return errors.New("the agent has stopped")
	}
	u.jobs.Go(job)
	return nil
}

// nextEpoch returns the number of Envoys that the agent has started so far, and increments it.
func (u *upgradeManager) nextEpoch() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.launched++
	return u.launched - 1
}

// acquire reserves the manager for the upgrade that what describes. It fails if another upgrade is running.
func (u *upgradeManager) acquire(what string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy != "" {
		return httpError{fmt.Errorf("%s is in progress; try again when the old Envoy has exited", u.busy), http.StatusConflict}
	}
	u.busy = what
	return nil
}

func (u *upgradeManager) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy = ""
}

func (u *upgradeManager) isBusy() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.busy != ""
}

// handleUpgrade handles POST /upgrade. If the client disconnects before the new Envoy serves, the upgrade is cancelled.
func (e *envoySupervisor) handleUpgrade(ctx context.Context, o UpgradeRequest) (UpgradeReport, error) {
	t := &upgradeRun{envoySupervisor: e, request: o, served: make(chan struct{}), ports: map[uint64]bool{}}
	if err := e.upgrades.acquire("an upgrade to " + o.Path); err != nil {
		return UpgradeReport{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	err := e.upgrades.goWhileRunning(func() {
		defer e.upgrades.release()
		done <- t.run(ctx)
	})
	if err != nil {
		e.upgrades.release()
		return UpgradeReport{}, err
	}
	served := t.served
	if o.Wait {
		served = nil
	}
	select {
	case <-served:
		return t.reportSnapshot(), nil
	case err := <-done:
		return t.reportSnapshot(), err
	}
}

// checkUpgrade returns the current instance, or an error if an upgrade would interrupt service.
func (e *envoySupervisor) checkUpgrade() (*envoyInstance, error) {
	i := e.currentInstance()
	switch {
	case e.requests.drain.isSet():
		return nil, errors.New("the proxy is draining")
	case i == nil:
		return nil, errors.New("no Envoy is running")
	case i.binary().Unconfirmed:
		return nil, errors.New("the running Envoy is starting and has not reported its version yet; try again later")
	}
	if s := e.relay.Status(); !s.Connected {
		return nil, fmt.Errorf("a new Envoy would not receive its configuration: no connection to the control plane (%s)", s.Reason)
	}
	return i, nil
}

// prepare finds the binary, validates the bootstrap, and selects the upgrade mode.
func (t *upgradeRun) prepare(ctx context.Context) error {
	var err error
	if t.old, err = t.checkUpgrade(); err != nil {
		return err
	}
	if t.request.Path == "" {
		return errors.New("the path of the new Envoy is missing")
	}
	t.binary, err = envoy.Find(ctx, envoy.FindOptions{Path: t.request.Path, CacheDir: t.Config.Envoy.CacheDir})
	if err != nil {
		return err
	}
	if err := checkBootstrap(ctx, t.Config, t.binary, t.options(t.binary)); err != nil {
		return err
	}
	impossible := t.checkHotRestart(ctx)
	switch t.request.Way {
	case HandOver:
		t.way = HandOver
	case HotRestart:
		t.way = HotRestart
		return impossible
	case "":
		t.way = HotRestart
		if impossible != nil {
			t.way = HandOver
			t.Logger.Info("upgrade: hot restart is not possible; using hand-over", "reason", impossible)
		}
	default:
		return fmt.Errorf("way %q is not known; use %s or %s", t.request.Way, HotRestart, HandOver)
	}
	return nil
}

func (t *upgradeRun) checkHotRestart(ctx context.Context) error {
	if t.old.hotRestart == nil {
		return errors.New("the running Envoy was started without hot restart; start the agent with --restart to enable it")
	}
	if ok, reason := t.old.checkReady(ctx); !ok {
		return fmt.Errorf("the running Envoy is not ready: %s", reason)
	}
	from, err := envoy.HotRestartVersion(ctx, t.old.binary().Path)
	if err != nil {
		return err
	}
	to, err := envoy.HotRestartVersion(ctx, t.binary.Path)
	if err != nil {
		return err
	}
	if from != to {
		return fmt.Errorf("hot restart version %s of Envoy %s and %s of Envoy %s are not compatible", from, t.old.binary().Version, to, t.binary.Version)
	}
	return nil
}

// startFirst starts an Envoy that does not replace a running one.
func (e *envoySupervisor) startFirst(binary envoy.Binary) (*envoyInstance, error) {
	i, err := e.startIndependent(binary, e.bootstrap.AdminSocket != "" || e.upgrades.adminForwarder.isActive() || e.upgrades.isBusy())
	if err == nil {
		e.forwardAdminTo(i)
	}
	return i, err
}

// startIndependent starts an Envoy that shares only its listening ports with other Envoys. If spareAdmin is true, its
// admin interface does not listen on the configured address.
func (e *envoySupervisor) startIndependent(binary envoy.Binary, spareAdmin bool) (*envoyInstance, error) {
	l := launchSpec{binary: binary, bootstrap: e.bootstrap, hotRestart: e.newHotRestartGroup()}
	var err error
	if spareAdmin {
		l.bootstrap, err = e.bootstrapWithSpareAdmin()
	}
	l.bootstrap.Envoy = versionNumbers(binary)
	o := e.options(binary)
	if err == nil {
		o.ConfigPath, err = e.ensureBootstrap(l.bootstrap)
	}
	if err != nil {
		return nil, err
	}
	o.HotRestart = l.hotRestart.options(0, 0)
	l.args = e.envoyArgs(o, binary)
	return e.start(l)
}

// ensureBootstrap writes the bootstrap file, unless the file already contains the variant that c requires.
func (e *envoySupervisor) ensureBootstrap(c bootstrap.Config) (file string, err error) {
	e.upgrades.mu.Lock()
	defer e.upgrades.mu.Unlock()
	variant := variantOf(c)
	if e.upgrades.writtenVariant == variant {
		return e.bootstrapFile, nil
	}
	file, err = writeBootstrap(e.Config, c)
	if err == nil {
		e.upgrades.writtenVariant = variant
	}
	return file, err
}

// writeFirstBootstrap writes the bootstrap again if the version of the first Envoy requires another variant. The agent
// wrote the file before it knew this version.
func (e *envoySupervisor) writeFirstBootstrap(binary envoy.Binary) error {
	c := e.bootstrap
	c.Envoy = versionNumbers(binary)
	_, err := e.ensureBootstrap(c)
	return err
}

// bootstrapVariant contains the properties in which the bootstraps of an agent's Envoys differ.
type bootstrapVariant struct {
	admin         string
	knowsAllFlags bool
}

func variantOf(c bootstrap.Config) bootstrapVariant {
	return bootstrapVariant{admin: c.AdminAddress(), knowsAllFlags: c.KnowsAllFlags()}
}

// versionNumbers returns the major and minor version, because the bootstrap depends on these only.
func versionNumbers(b envoy.Binary) [2]int { return [2]int{b.Version.Major, b.Version.Minor} }

// String returns a one-line summary.
func (r UpgradeReport) String() string {
	text := fmt.Sprintf("Envoy %s (pid %d) has replaced Envoy %s by %s after %v", r.To, r.PID, r.From, r.Way, r.Took.Round(time.Millisecond))
	if r.Until != "" {
		text += "; the old one has exited: " + r.Until
	}
	return text
}
