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

// The ways from one Envoy to the next.
const (
	// hotRestart: the new one takes the listening sockets over, and the old one drains by itself.
	hotRestart = "hot-restart"
	// handOver: both listen side by side (SO_REUSEPORT), and the old one is told to drain.
	handOver = "hand-over"
)

const (
	defaultReadyWithin = 30 * time.Second
	// keepMargin is what an old Envoy has beyond its drain time for what it has not finished.
	keepMargin = 15 * time.Second
	// youngPoll is how often a new Envoy is asked whether it is ready.
	youngPoll = 25 * time.Millisecond
)

// upgradeOrder is what POST /upgrade takes.
type upgradeOrder struct {
	// Path is the binary to go to.
	Path string `json:"path"`
	// Way is hot-restart or hand-over; empty for what is possible.
	Way string `json:"way,omitempty"`
	// ReadyWithin is how long the new Envoy may take to be ready, Keep how long the old one may go on afterwards without
	// a request.
	ReadyWithin time.Duration `json:"readyWithin,omitempty"`
	Keep        time.Duration `json:"keep,omitempty"`
	// Wait asks for the answer when the old Envoy has ended, not when the new one serves.
	Wait bool `json:"wait,omitempty"`
}

// upgradeReport is what it answers.
type upgradeReport struct {
	From  string        `json:"from"`
	To    string        `json:"to"`
	Way   string        `json:"way"`
	PID   int           `json:"pid"`
	Took  time.Duration `json:"took"`            // until the new one served
	Until string        `json:"until,omitempty"` // why the old one was ended when it was
}

// upgrades is what an agent knows of Envoys that take over from each other.
type upgrades struct {
	results *prometheus.CounterVec
	port    adminPort

	mu   sync.Mutex
	busy string // the upgrade that is under way
	// life ends when the agent is told to end, late when it has.
	life, late context.Context
	over       bool
	jobs       sync.WaitGroup
	launched   int              // Envoys so far
	written    bootstrapVariant // what is in the bootstrap's file
}

// The results of upgrades.
const (
	upgradeDone    = "done"
	upgradeRefused = "refused"
	upgradeBack    = "went-back"
	upgradeLost    = "lost" // nor could the old one be brought back in full
)

func (e *envoyPart) offerUpgrades() error {
	e.upgrades.written = variantOf(e.bootstrap)
	e.upgrades.results = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_envoy_upgrades_total",
		Help: "Upgrades of Envoy by result: done, refused, went-back, lost.",
	}, []string{"result"})
	for _, result := range []string{upgradeDone, upgradeRefused, upgradeBack, upgradeLost} {
		e.upgrades.results.WithLabelValues(result)
	}
	epoch := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "istio_agent_envoy_epoch",
		Help: "How many Envoys this agent started before the one that serves.",
	}, func() float64 {
		if i := e.instance(); i != nil {
			return float64(i.epoch)
		}
		return 0
	})
	e.control.Handle("POST /upgrade", answer(e.orderUpgrade))
	return errors.Join(e.metrics.Register(e.upgrades.results), e.metrics.Register(epoch))
}

// noUpgrade answers an agent's POST /upgrade that runs no Envoy.
func (a *Agent) noUpgrade(context.Context, upgradeOrder) (upgradeReport, error) {
	return upgradeReport{}, errors.New("it runs no Envoy: DISABLE_ENVOY is set")
}

// begin lets upgrades happen until the context ends. The function that it gives waits for what they left to do.
func (u *upgrades) begin(life context.Context) (end func()) {
	late, cancel := context.WithCancel(context.WithoutCancel(life))
	u.mu.Lock()
	defer u.mu.Unlock()
	u.life, u.late = life, late
	return func() {
		u.mu.Lock()
		u.over = true
		u.mu.Unlock()
		cancel()
		u.jobs.Wait()
	}
}

// run does a job beside the agent's own, unless the agent has ended.
func (u *upgrades) run(job func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over || u.life == nil || u.life.Err() != nil {
		return errors.New("the agent is ending")
	}
	u.jobs.Go(job)
	return nil
}

// keep does a job that may begin as long as others run.
func (u *upgrades) keep(job func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return errors.New("the agent has ended")
	}
	u.jobs.Go(job)
	return nil
}

// number counts the Envoys that were started, from 0.
func (u *upgrades) number() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.launched++
	return u.launched - 1
}

// take begins an upgrade, unless one is under way.
func (u *upgrades) take(what string) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.busy != "" {
		return refusal{fmt.Errorf("%s is under way; try again when the old Envoy has ended", u.busy), http.StatusConflict}
	}
	u.busy = what
	return nil
}

func (u *upgrades) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy = ""
}

func (u *upgrades) underWay() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.busy != ""
}

// orderUpgrade answers POST /upgrade. The caller may go once the new Envoy serves; before, that ends the upgrade.
func (e *envoyPart) orderUpgrade(ctx context.Context, o upgradeOrder) (upgradeReport, error) {
	t := &takeover{envoyPart: e, order: o, served: make(chan struct{}), ports: map[uint64]bool{}}
	if err := e.upgrades.take("an upgrade to " + o.Path); err != nil {
		return upgradeReport{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	err := e.upgrades.run(func() {
		defer e.upgrades.leave()
		done <- t.run(ctx)
	})
	if err != nil {
		e.upgrades.leave()
		return upgradeReport{}, err
	}
	served := t.served
	if o.Wait {
		served = nil
	}
	select {
	case <-served:
		return t.reported(), nil
	case err := <-done:
		return t.reported(), err
	}
}

// check refuses an upgrade that could only do harm.
func (e *envoyPart) checkUpgrade() (*instance, error) {
	i := e.instance()
	switch {
	case e.orders.drain.given():
		return nil, errors.New("the proxy is draining")
	case i == nil:
		return nil, errors.New("no Envoy runs that could be upgraded")
	}
	if s := e.relay.Status(); !s.Connected {
		return nil, fmt.Errorf("a new Envoy would get no configuration: no connection to the control plane (%s)", s.Reason)
	}
	return i, nil
}

// pick finds the binary and the way.
func (t *takeover) pick(ctx context.Context) error {
	var err error
	if t.old, err = t.checkUpgrade(); err != nil {
		return err
	}
	if t.order.Path == "" {
		return errors.New("which Envoy? name its path")
	}
	t.binary, err = envoy.Find(ctx, envoy.FindOptions{Path: t.order.Path, CacheDir: t.Config.Envoy.CacheDir})
	if err != nil {
		return err
	}
	if err := t.Config.validate(ctx, t.binary, t.options(t.binary)); err != nil {
		return err
	}
	impossible := t.whyNoHotRestart(ctx)
	switch t.order.Way {
	case handOver:
		t.way = handOver
	case hotRestart:
		t.way = hotRestart
		return impossible
	case "":
		t.way = hotRestart
		if impossible != nil {
			t.way = handOver
			t.Logger.Info("upgrade: hot restart is not possible, both Envoys will listen side by side", "because", impossible)
		}
	default:
		return fmt.Errorf("way %q is not known; use %s or %s", t.order.Way, hotRestart, handOver)
	}
	return nil
}

func (t *takeover) whyNoHotRestart(ctx context.Context) error {
	if t.old.lineage == nil {
		return errors.New("the Envoy that runs was started without hot restart; the agent enables it with --restart")
	}
	if ok, reason := t.old.check(ctx); !ok {
		return fmt.Errorf("the Envoy that runs is not ready: %s", reason)
	}
	from, err := envoy.HotRestartVersion(ctx, t.old.binary.Path)
	if err != nil {
		return err
	}
	to, err := envoy.HotRestartVersion(ctx, t.binary.Path)
	if err != nil {
		return err
	}
	if from != to {
		return fmt.Errorf("hot restart version %s of Envoy %s and %s of Envoy %s are not compatible", from, t.old.binary.Version, to, t.binary.Version)
	}
	return nil
}

// startFirst starts an Envoy that takes over from none.
func (e *envoyPart) startFirst(binary envoy.Binary) (*instance, error) {
	i, err := e.startApart(binary, e.upgrades.port.forwarding() || e.upgrades.underWay())
	if err == nil {
		e.leadAdminTo(i)
	}
	return i, err
}

// startApart starts an Envoy that shares nothing but listening ports with any other. It has its admin interface at a port
// of its own where the usual one is in use.
func (e *envoyPart) startApart(binary envoy.Binary, spareAdmin bool) (*instance, error) {
	l := launch{binary: binary, bootstrap: e.bootstrap, lineage: e.newLineage()}
	var err error
	if spareAdmin {
		l.bootstrap, err = e.spareAdmin()
	}
	l.bootstrap.Envoy = numbers(binary)
	o := e.options(binary)
	if err == nil {
		o.ConfigPath, err = e.bootstrapFor(l.bootstrap)
	}
	if err != nil {
		return nil, err
	}
	o.HotRestart = l.lineage.epoch(0, 0)
	l.args = e.arguments(o, binary)
	return e.start(l)
}

// bootstrapFor makes the file of the bootstrap be that one.
func (e *envoyPart) bootstrapFor(c bootstrap.Config) (file string, err error) {
	e.upgrades.mu.Lock()
	defer e.upgrades.mu.Unlock()
	is := variantOf(c)
	if e.upgrades.written == is {
		return e.file, nil
	}
	file, err = writeBootstrap(e.Config, c)
	if err == nil {
		e.upgrades.written = is
	}
	return file, err
}

// suit makes the file of the bootstrap fit the Envoy that is started first: it was written before that was known.
func (e *envoyPart) suit(binary envoy.Binary) error {
	c := e.bootstrap
	c.Envoy = numbers(binary)
	_, err := e.bootstrapFor(c)
	return err
}

// bootstrapVariant is what differs between the bootstraps of an agent's Envoys.
type bootstrapVariant struct {
	admin         string
	knowsAllFlags bool
}

func variantOf(c bootstrap.Config) bootstrapVariant {
	return bootstrapVariant{admin: c.AdminAddress(), knowsAllFlags: c.KnowsAllFlags()}
}

// numbers are those of a version that a bootstrap goes by.
func numbers(b envoy.Binary) [2]int { return [2]int{b.Version.Major, b.Version.Minor} }
