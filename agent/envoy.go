package agent

import (
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// probeTime bounds what a readiness probe may take of Envoy; kubelets give up after a second.
const probeTime = 800 * time.Millisecond

// shortestDrain is the least that Envoy is given: without a time it takes ten minutes, and it counts in seconds.
const shortestDrain = time.Second

// lingerTime is what the kernel has to end an Envoy that was killed by others or has crashed.
const lingerTime = 5 * time.Second

// EnvoyEndedError says that Envoy ended although nobody had asked it to, or otherwise than it was asked to.
type EnvoyEndedError struct {
	Exit envoy.Exit
	// Restarts is how often it was started again before the agent gave up.
	Restarts int
}

func (e *EnvoyEndedError) Error() string {
	if e.Restarts > 0 {
		return fmt.Sprintf("Envoy ended: %s; it was restarted %d times and keeps failing", e.Exit, e.Restarts)
	}
	return fmt.Sprintf("Envoy ended: %s", e.Exit)
}

// envoyPart runs Envoy, and starts it again when that is asked for. There is one current instance at most: it is the one
// that is probed, drained and stopped.
type envoyPart struct {
	*Agent
	counts   *envoyMetrics
	progress *progress
	own      *regexp.Regexp // statistics that do not count in a drain

	mu       sync.Mutex
	current  *instance
	why      string    // there is no instance
	since    time.Time // there is none
	restarts int
	lastEnd  *EndStatus
	givenUp  map[*instance]bool // and still there
	verdict  error              // of the end that was asked for
	replaced chan struct{}      // has room for one: another instance became the current one
	doubts   chan struct{}      // has room for one: the current one was asked how it is, and was not simply well

	upgrades upgrades
}

func newEnvoyPart(a *Agent) (*envoyPart, error) {
	e := &envoyPart{Agent: a, why: "Envoy has not been started yet", since: a.Started, own: ownStats(a.Config), givenUp: map[*instance]bool{}, replaced: make(chan struct{}, 1), doubts: make(chan struct{}, 1)}
	var err error
	if e.counts, err = newEnvoyMetrics(a.metrics); err != nil {
		return nil, err
	}
	if err := e.offerUpgrades(); err != nil {
		return nil, err
	}
	e.progress, err = newProgress(a.metrics, a.orders.drain.given)
	return e, err
}

func (e *envoyPart) part() part { return part{name: "envoy", run: e.run, health: e.condition} }

// run owns Envoy until the context ends or Envoy does for good.
func (e *envoyPart) run(ctx context.Context) error {
	binary, err := e.find(ctx)
	if err != nil {
		return err
	}
	if err := e.suit(binary); err != nil {
		return err
	}
	if err := e.Config.validateOnce(ctx, binary, e.options(binary)); err != nil {
		return err
	}
	e.sweepLineages()
	defer e.endLineages()
	defer e.upgrades.begin(ctx)()
	e.Logger.Info("starting Envoy", "path", binary.Path, "version", binary.Version, "found", binary.Source)
	allowed := envoyBudget()
	for {
		ended, err := e.once(ctx, binary)
		if err != nil {
			return err
		}
		exit := ended.end()
		if ctx.Err() != nil {
			e.setVerdict(ended, exit)
			return nil
		}
		wait, again := allowed.fail(time.Now())
		if !again && e.stillGivenUp() > 0 {
			wait, again = allowed.MaxWait, true // it may be that one's ports that are missing
		}
		before := ended.fallback.Load()
		if (before == nil && !e.Config.Envoy.Restart) || !again {
			e.ended(ended, exit)
			return &EnvoyEndedError{Exit: exit, Restarts: e.restartCount()}
		}
		binary = ended.binary // which may be another than the first
		if before != nil {
			binary = *before
			e.Logger.Error("the new Envoy ended while the old one drained: going back", "version", binary.Version)
		}
		e.restarting(ended, exit, wait)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// ended notes an end that nobody asked for.
func (e *envoyPart) ended(i *instance, x envoy.Exit) {
	end := newEndStatus(x, time.Now())
	if len(x.Tail) > 0 {
		e.Logger.Error("Envoy's last lines", "tail", x.Tail)
	}
	if end.ExitCode != 0 {
		end.Report = e.report(i, "Envoy "+end.Text, end, nil, "Envoy had ended")
		e.lastWords(end)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastEnd = end
}

func (e *envoyPart) restarting(i *instance, x envoy.Exit, wait time.Duration) {
	e.ended(i, x)
	e.counts.restarts.WithLabelValues(endReason(x)).Inc()
	e.mu.Lock()
	e.restarts++
	restarts := e.restarts
	e.mu.Unlock()
	e.set(nil, fmt.Sprintf("Envoy ended (%s) and is started again", x))
	e.Logger.Warn("Envoy is started again", "after", wait, "restarts", restarts)
}

func (e *envoyPart) restartCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restarts
}

// setVerdict keeps how an end that was asked for came out: an Envoy that crashed on its way, or had to be killed, is no
// clean end.
func (e *envoyPart) setVerdict(i *instance, x envoy.Exit) {
	if x.Reason == envoy.Stopped && !x.Forced {
		return
	}
	e.ended(i, x)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.verdict = &EnvoyEndedError{Exit: x, Restarts: e.restarts}
}

func (e *envoyPart) find(ctx context.Context) (envoy.Binary, error) {
	return e.Config.Envoy.find(ctx)
}

// once starts an Envoy and follows the current one to its end, which may be another by then.
func (e *envoyPart) once(ctx context.Context, binary envoy.Binary) (*instance, error) {
	i, err := e.startFirst(binary)
	if err != nil {
		return nil, err
	}
	e.set(i, "")
	i = e.follow(ctx)
	e.set(nil, fmt.Sprintf("Envoy ended: %s", i.end()))
	i.leave(e.Logger)
	return i, nil
}

// follow waits for the end of the current instance, and ends it when the context ends. An instance that was replaced is
// left to whoever replaced it.
func (e *envoyPart) follow(ctx context.Context) *instance {
	stay := e.orders.stay.done()
	var lookAgain <-chan time.Time
	for {
		i := e.instance()
		select {
		case <-e.doubts:
			if lookAgain == nil && e.lingers(i) {
				lookAgain = time.After(lingerTime)
			}
		case <-lookAgain:
			lookAgain = nil
			if e.lingers(i) {
				i.process.Stop(atOnce()) // in vain: another can serve meanwhile
			}
		case <-i.process.Done():
			if e.replace(i, nil, "Envoy has ended") {
				return i
			}
		case <-e.replaced:
			stay = e.orders.stay.done()
		case <-stay:
			stay = nil
			_ = e.upgrades.run(func() { e.keepDraining(i) }) // refused when the end has begun, which drains too
		case <-ctx.Done():
			e.stop(i)
			if e.replace(i, nil, "Envoy was told to end") {
				return i
			}
		}
	}
}

// lingers says whether an Envoy was killed or has crashed, and the kernel has not ended it.
func (e *envoyPart) lingers(i *instance) bool {
	where := i.process.Lingers()
	if where != "" {
		e.Logger.Warn("Envoy was killed or has crashed, and the kernel has not ended it", "pid", i.process.PID(), "threads", where)
	}
	return where != ""
}

// replace makes another instance the current one, or none with the reason, if the old one still is.
func (e *envoyPart) replace(old, by *instance, why string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != old {
		return false
	}
	e.current, e.why, e.since = by, why, time.Now()
	select {
	case e.replaced <- struct{}{}:
	default: // it is known already that there is another
	}
	return true
}

// instance is the current one; nil when there is none.
func (e *envoyPart) instance() *instance {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current
}

// options are what every Envoy of this agent is started with.
func (e *envoyPart) options(binary envoy.Binary) envoy.Options {
	p, c := e.Config.Proxy, e.Config.Envoy
	version := "v4"
	if !e.Config.Identity.IPs[0].Unmap().Is4() {
		version = "v6"
	}
	format := ""
	if c.LogAsJSON {
		format = envoy.JSONLogFormat
	}
	level, components := e.levels.flags(c.LogLevel, c.ComponentLogLevel)
	return envoy.Options{
		Version:               binary.Version,
		ConfigPath:            e.file,
		DrainTime:             max(p.GetDrainDuration().AsDuration(), shortestDrain),
		LocalAddressIPVersion: version,
		FileFlushInterval:     p.GetFileFlushInterval().AsDuration(),
		FileFlushMinSizeKB:    int(p.GetFileFlushMinSizeKb()),
		LogLevel:              level,
		ComponentLogLevel:     components,
		LogFormat:             format,
		Concurrency:           c.Concurrency,
		EnableCoreDump:        c.CoreDump,
	}
}

// arguments are those of an Envoy that begins a lineage, or has none.
func (e *envoyPart) arguments(o envoy.Options, binary envoy.Binary) []string {
	for _, flag := range o.LeftOut() {
		e.Logger.Warn("this Envoy does not know a flag that was asked for, which is left out", "flag", flag, "version", binary.Version)
	}
	return o.Args()
}

func (e *envoyPart) set(i *instance, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.why, e.since = i, why, time.Now()
}

// verdictOfEnd is how an end that was asked for came out; nil for a clean one. It is known once run has returned.
func (e *envoyPart) verdictOfEnd() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.verdict
}

// noteState is told of each change of an instance's state.
func (e *envoyPart) noteState(i *instance, from, to State) {
	e.counts.moved(from, to)
	if to == GivenUp {
		e.watchGivenUp(i)
	}
	if to == GivenUp || to == Ended && from != GivenUp {
		e.counts.ends.WithLabelValues(endReason(i.process.Exit())).Inc()
	}
	e.Logger.Debug("Envoy's state", "state", string(to), "pid", i.process.PID(), "epoch", i.epoch)
}

// stillGivenUp is how many Envoys were killed in vain.
func (e *envoyPart) stillGivenUp() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.givenUp)
}

// watchGivenUp keeps an Envoy that was killed in vain among those of the agent until it is gone.
func (e *envoyPart) watchGivenUp(i *instance) {
	e.mu.Lock()
	e.givenUp[i] = true
	e.mu.Unlock()
	_ = e.upgrades.keep(func() { // refused when the agent has ended, and this one with it
		select {
		case <-i.process.Gone():
		case <-e.upgrades.late.Done():
			return
		}
		e.mu.Lock()
		delete(e.givenUp, i)
		e.mu.Unlock()
		i.buried()
	})
}

// Health says whether Envoy takes traffic.
func (e *envoyPart) Health() (ok bool, reason string) {
	c := e.condition()
	return c.OK, c.Reason
}
