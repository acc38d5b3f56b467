package agent

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/logformat"
	"github.com/pilotfish-mesh/pilotfish/internal/phrase"
)

// probeTimeout is the timeout of readiness requests to Envoy. The default timeout of a kubelet's probe is one second.
const probeTimeout = 800 * time.Millisecond

// minDrainTime is the minimum drain time that the agent passes to Envoy. Envoy's flag is in whole seconds, and for 0
// Envoy uses ten minutes.
const minDrainTime = time.Second

// kernelExitTimeout is how long the agent waits for the kernel to end an Envoy that has crashed or was killed by
// another process.
const kernelExitTimeout = 5 * time.Second

// EnvoyEndedError reports that Envoy exited unexpectedly, or did not stop cleanly.
type EnvoyEndedError struct {
	Exit envoy.Exit
	// Restarts is the number of restarts before the agent stopped restarting Envoy.
	Restarts int
}

func (e *EnvoyEndedError) Error() string {
	if e.Restarts > 0 {
		return fmt.Sprintf("Envoy ended: %s; after %s it still fails", e.Exit, phrase.Count(e.Restarts, "restart"))
	}
	return fmt.Sprintf("Envoy ended: %s", e.Exit)
}

// envoySupervisor runs Envoy and restarts it if restarts are configured. At most one instance is current: the agent
// probes, drains and stops this instance.
type envoySupervisor struct {
	*Agent
	counters     *envoyMetrics
	drainTracker *drainTracker
	ownStats     *regexp.Regexp // matches statistics that a drain ignores

	mu               sync.Mutex
	current          *envoyInstance
	noInstanceReason string    // the reason why current is nil
	since            time.Time // time of the last change of current
	restarts         int
	lastEnd          *endStatus
	givenUp          map[*envoyInstance]bool // Envoys that the kernel has not ended after SIGKILL
	stopErr          error                   // result of a requested stop
	currentChanged   chan struct{}           // capacity 1: current was replaced
	recheck          chan struct{}           // capacity 1: a readiness check was not fully OK

	upgrades upgradeManager
}

func newEnvoySupervisor(a *Agent) (*envoySupervisor, error) {
	e := &envoySupervisor{Agent: a, noInstanceReason: "Envoy has not been started yet", since: a.Started, ownStats: ownStatsPattern(a.Config), givenUp: map[*envoyInstance]bool{}, currentChanged: make(chan struct{}, 1), recheck: make(chan struct{}, 1)}
	var err error
	if e.counters, err = newEnvoyMetrics(a.metrics); err != nil {
		return nil, err
	}
	if err := e.registerUpgrades(); err != nil {
		return nil, err
	}
	e.drainTracker, err = newDrainTracker(a.metrics, a.requests.drain.isSet)
	return e, err
}

func (e *envoySupervisor) component() component {
	return component{name: "envoy", run: e.run, health: e.condition}
}

// run runs Envoy until ctx ends, or until Envoy exits and may not be restarted.
func (e *envoySupervisor) run(ctx context.Context) error {
	binary, err := e.find(ctx)
	if err != nil {
		return err
	}
	if err := e.writeFirstBootstrap(binary); err != nil {
		return err
	}
	if err := checkBootstrapOnce(ctx, e.Config, binary, e.options(binary), e.bootstrap.AgentSecret); err != nil {
		return err
	}
	e.removeStaleHotRestarts()
	defer e.removeHotRestartDir()
	e.removeStaleAdminSockets()
	defer e.removeAdminSockets()
	defer e.upgrades.start(ctx)()
	e.logStart(binary)
	budget := envoyBudget()
	for {
		ended, err := e.runOnce(ctx, binary)
		if err != nil {
			return err
		}
		exit := ended.waitEnd()
		if ctx.Err() != nil {
			e.setStopError(ended, exit)
			return nil
		}
		if err := e.checkEndedVersion(ctx, ended); err != nil {
			return err
		}
		wait, again := budget.RecordFailure(time.Now())
		if !again && e.countGivenUp() > 0 {
			wait, again = budget.MaxWait, true // an Envoy that the kernel has not ended may still occupy the ports
		}
		before := ended.fallback.Load()
		if (before == nil && !e.Config.Envoy.Restart) || !again {
			e.recordEnd(ended, exit)
			return &EnvoyEndedError{Exit: exit, Restarts: e.restartCount()}
		}
		binary = ended.binary() // an upgrade may have changed the binary
		if before != nil {
			binary = *before
			e.Logger.Error("the new Envoy exited while the old one drained; restarting the old version", "version", binary.Version)
		}
		e.recordRestart(ended, exit, wait)
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}

// recordEnd records an unexpected or unclean exit, and writes a crash report for a nonzero exit code.
func (e *envoySupervisor) recordEnd(i *envoyInstance, x envoy.Exit) {
	end := newEndStatus(x, time.Now())
	if len(x.Tail) > 0 {
		e.Logger.Error("Envoy's last lines", "tail", x.Tail)
	}
	if end.ExitCode != 0 {
		end.Report = e.createCrashReport(i, "Envoy "+end.Text, end, nil, "Envoy had already exited")
		e.writeTerminationMessage(end)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lastEnd = end
}

func (e *envoySupervisor) recordRestart(i *envoyInstance, x envoy.Exit, wait time.Duration) {
	e.recordEnd(i, x)
	e.counters.restarts.WithLabelValues(endReason(x)).Inc()
	e.mu.Lock()
	e.restarts++
	restarts := e.restarts
	e.mu.Unlock()
	e.setCurrent(nil, fmt.Sprintf("Envoy exited (%s); the agent restarts it", x))
	e.Logger.Warn("restarting Envoy", "after", wait, "restarts", restarts)
}

func (e *envoySupervisor) restartCount() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.restarts
}

// setStopError records an error if a requested stop was not clean: Envoy crashed, or the agent sent SIGKILL.
func (e *envoySupervisor) setStopError(i *envoyInstance, x envoy.Exit) {
	if x.Reason == envoy.Stopped && !x.Forced {
		return
	}
	e.recordEnd(i, x)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopErr = &EnvoyEndedError{Exit: x, Restarts: e.restarts}
}

// runOnce starts an Envoy and returns the current instance after its exit. Upgrades may have replaced the started
// instance.
func (e *envoySupervisor) runOnce(ctx context.Context, binary envoy.Binary) (*envoyInstance, error) {
	i, err := e.startFirst(binary)
	if err != nil {
		return nil, e.explainStartError(ctx, binary, err)
	}
	e.setCurrent(i, "")
	_ = e.upgrades.goWhileRunning(func() { e.checkVersion(ctx, i) }) // fails if the shutdown has begun
	i = e.superviseCurrent(ctx)
	e.setCurrent(nil, fmt.Sprintf("Envoy ended: %s", i.waitEnd()))
	i.waitAndCleanUp(e.Logger)
	return i, nil
}

// superviseCurrent waits for the exit of the current instance, and stops it when ctx ends. It does not stop an instance
// that an upgrade has replaced: the upgrade does that.
func (e *envoySupervisor) superviseCurrent(ctx context.Context) *envoyInstance {
	stay := e.requests.stay.done()
	var lookAgain <-chan time.Time
	for {
		i := e.currentInstance()
		select {
		case <-e.recheck:
			if lookAgain == nil && e.isStuckExiting(i) {
				lookAgain = time.After(kernelExitTimeout)
			}
		case <-lookAgain:
			lookAgain = nil
			if e.isStuckExiting(i) {
				i.process.Stop(canceledContext()) // send SIGKILL at once, so that another Envoy can start
			}
		case <-i.process.Done():
			if e.replaceCurrent(i, nil, "Envoy has ended") {
				return i
			}
		case <-e.currentChanged:
			stay = e.requests.stay.done()
		case <-stay:
			stay = nil
			_ = e.upgrades.goWhileRunning(func() { e.retryDrain(i) }) // fails if the shutdown has begun, which drains too
		case <-ctx.Done():
			e.stop(i)
			if e.replaceCurrent(i, nil, "Envoy is stopping") {
				return i
			}
		}
	}
}

// isStuckExiting reports whether Envoy crashed or was killed, but the kernel has not ended its process yet. It logs
// this.
func (e *envoySupervisor) isStuckExiting(i *envoyInstance) bool {
	where := i.process.HungThreads()
	if where != "" {
		e.Logger.Warn("Envoy crashed or was killed, but its process still exists in the kernel", "pid", i.process.PID(), "threads", where)
	}
	return where != ""
}

// replaceCurrent makes next the current instance in place of old. If next is nil, why is the reason. It returns false
// if old is not the current instance.
func (e *envoySupervisor) replaceCurrent(old, next *envoyInstance, why string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current != old {
		return false
	}
	e.current, e.noInstanceReason, e.since = next, why, time.Now()
	select {
	case e.currentChanged <- struct{}{}:
	default: // a notification is already pending
	}
	return true
}

// currentInstance returns the current instance; nil if there is none.
func (e *envoySupervisor) currentInstance() *envoyInstance {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.current
}

// options returns the options that all Envoys of this agent have in common.
func (e *envoySupervisor) options(binary envoy.Binary) envoy.Options {
	p, c := e.Config.Proxy, e.Config.Envoy
	version := "v4"
	if !e.Config.Identity.IPs[0].Unmap().Is4() {
		version = "v6"
	}
	level, components := e.levels.StartLevels(c.LogLevel, c.ComponentLogLevel)
	return envoy.Options{
		Version:               binary.Version,
		ConfigPath:            e.bootstrapFile,
		DrainTime:             max(p.GetDrainDuration().AsDuration(), minDrainTime),
		LocalAddressIPVersion: version,
		FileFlushInterval:     p.GetFileFlushInterval().AsDuration(),
		FileFlushMinSizeKB:    int(p.GetFileFlushMinSizeKb()),
		LogLevel:              level,
		ComponentLogLevel:     components,
		LogFormat:             e.logFormat(),
		Concurrency:           c.Concurrency,
		EnableCoreDump:        c.CoreDump,
		LogDeprecations:       c.LogDeprecations,
	}
}

// logFormat returns the format of Envoy's log. It returns "" if the user's bootstrap contains a format: Envoy refuses to
// start with both.
func (e *envoySupervisor) logFormat() string {
	for _, custom := range [][]byte{e.Config.Bootstrap.Custom, e.Config.Bootstrap.Override} {
		if bytes.Contains(custom, []byte("application_log_config")) || bytes.Contains(custom, []byte("applicationLogConfig")) {
			return ""
		}
	}
	if e.Config.Envoy.LogAsJSON {
		return logformat.EnvoyJSON
	}
	return logformat.EnvoyText
}

// envoyArgs returns the arguments of an Envoy, and logs options that this version does not support.
func (e *envoySupervisor) envoyArgs(o envoy.Options, binary envoy.Binary) []string {
	for _, flag := range o.UnsupportedFlags() {
		e.Logger.Warn("this version of Envoy does not support a flag; the agent omits the flag", "flag", flag, "version", binary.Version)
	}
	return o.Args()
}

func (e *envoySupervisor) setCurrent(i *envoyInstance, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.noInstanceReason, e.since = i, why, time.Now()
}

// stopError returns the result of a requested stop; nil if it was clean. It is valid after run has returned.
func (e *envoySupervisor) stopError() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stopErr
}

// onStateChange is called after each change of an instance's state.
func (e *envoySupervisor) onStateChange(i *envoyInstance, from, to envoyState) {
	e.counters.moveState(from, to)
	if to == stateGivenUp {
		e.watchGivenUp(i)
	}
	if to == stateGivenUp || to == stateEnded && from != stateGivenUp {
		e.counters.ends.WithLabelValues(endReason(i.process.Exit())).Inc()
	}
	e.Logger.Debug("Envoy's state changed", "state", string(to), "pid", i.process.PID(), "epoch", i.epoch)
}

// countGivenUp returns the number of Envoys that the kernel has not ended after SIGKILL.
func (e *envoySupervisor) countGivenUp() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.givenUp)
}

// watchGivenUp adds i, which the kernel has not ended after SIGKILL, to givenUp. It removes i when its process has
// ended.
func (e *envoySupervisor) watchGivenUp(i *envoyInstance) {
	e.mu.Lock()
	e.givenUp[i] = true
	e.mu.Unlock()
	_ = e.upgrades.goUntilClosed(func() { // fails if the agent has stopped, and this Envoy with it
		select {
		case <-i.process.Terminated():
		case <-e.upgrades.lateCtx.Done():
			return
		}
		e.mu.Lock()
		delete(e.givenUp, i)
		e.mu.Unlock()
		i.markEnded()
	})
}

// Health reports whether Envoy is ready, and the reason if not.
func (e *envoySupervisor) Health() (ok bool, reason string) {
	c := e.condition()
	return c.OK, c.Reason
}
