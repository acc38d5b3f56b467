package agent

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/envoy"
)

// probeTime bounds what a readiness probe may take of Envoy; kubelets give up after a second.
const probeTime = 800 * time.Millisecond

// EnvoyEndedError says that Envoy ended although nobody had asked it to.
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
	draining atomic.Bool // clients were told to go
	drained  atomic.Bool // by POST /drain, so that the next stop need not do it again

	mu       sync.Mutex
	current  *instance
	why      string        // there is no instance
	replaced chan struct{} // has room for one: another instance became the current one
}

func newEnvoyPart(a *Agent) *envoyPart {
	return &envoyPart{Agent: a, why: "Envoy has not been started yet", replaced: make(chan struct{}, 1)}
}

func (e *envoyPart) part() part { return part{name: "envoy", run: e.run, health: e.Health} }

// run owns Envoy until the context ends or Envoy does for good.
func (e *envoyPart) run(ctx context.Context) error {
	binary, err := e.find(ctx)
	if err != nil {
		return err
	}
	e.Logger.Info("starting Envoy", "path", binary.Path, "version", binary.Version, "found", binary.Source)
	allowed, restarts := envoyBudget(), 0
	for {
		ended, err := e.once(ctx, binary)
		if err != nil || ctx.Err() != nil {
			return err
		}
		exit := ended.end()
		wait, again := allowed.fail(time.Now())
		if !e.Config.Envoy.Restart || !again {
			return &EnvoyEndedError{Exit: exit, Restarts: restarts}
		}
		restarts++
		binary = ended.binary // which may be another than the first
		e.set(nil, fmt.Sprintf("Envoy ended (%s) and is started again", exit))
		e.Logger.Error("Envoy ended and is started again", "why", exit, "after", wait, "restarts", restarts, "tail", exit.Tail)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

func (e *envoyPart) find(ctx context.Context) (envoy.Binary, error) {
	return e.Config.Envoy.find(ctx)
}

// once starts an Envoy and follows the current one to its end, which may be another by then.
func (e *envoyPart) once(ctx context.Context, binary envoy.Binary) (*instance, error) {
	i, err := e.start(launch{binary: binary, admin: e.bootstrap.AdminAddress(), args: e.arguments(binary)})
	if err != nil {
		return nil, err
	}
	e.set(i, "")
	i = e.follow(ctx)
	e.set(nil, fmt.Sprintf("Envoy ended: %s", i.end()))
	return i, nil
}

// follow waits for the end of the current instance, and ends it when the context ends. An instance that was replaced is
// left to whoever replaced it.
func (e *envoyPart) follow(ctx context.Context) *instance {
	for {
		i := e.instance()
		select {
		case <-i.process.Done():
			if i == e.instance() {
				return i
			}
		case <-e.replaced:
		case <-ctx.Done():
			e.stop(i)
			return i
		}
	}
}

// replace makes another instance the current one, and gives the one that was.
func (e *envoyPart) replace(by *instance) *instance {
	e.mu.Lock()
	old := e.current
	e.current = by
	e.mu.Unlock()
	select {
	case e.replaced <- struct{}{}:
	default: // it is known already that there is another
	}
	return old
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
	level, components := e.levels.flags(c.LogLevel, c.ComponentLogLevel)
	return envoy.Options{
		Version:               binary.Version,
		ConfigPath:            e.file,
		DrainTime:             p.GetDrainDuration().AsDuration(),
		LocalAddressIPVersion: version,
		FileFlushInterval:     p.GetFileFlushInterval().AsDuration(),
		FileFlushMinSizeKB:    int(p.GetFileFlushMinSizeKb()),
		LogLevel:              level,
		ComponentLogLevel:     components,
		Concurrency:           c.Concurrency,
	}
}

func (e *envoyPart) arguments(binary envoy.Binary) []string {
	o := e.options(binary)
	for _, flag := range o.LeftOut() {
		e.Logger.Warn("this Envoy does not know a flag that was asked for, which is left out", "flag", flag, "version", binary.Version)
	}
	return o.Args()
}

func (e *envoyPart) set(i *instance, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.current, e.why = i, why
}

// noteState is told of each change of an instance's state.
func (e *envoyPart) noteState(i *instance, s State) {
	e.Logger.Debug("Envoy's state", "state", string(s), "pid", i.process.PID(), "epoch", i.epoch)
}

// Health says whether Envoy takes traffic.
func (e *envoyPart) Health() (ok bool, reason string) {
	e.mu.Lock()
	i, why := e.current, e.why
	e.mu.Unlock()
	switch {
	case e.draining.Load():
		return false, "the proxy is draining"
	case i == nil:
		return false, why
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	return i.check(ctx)
}

// drain answers POST /drain: clients are told to go, and the listeners stay open until the agent is stopped.
func (e *envoyPart) drain() {
	e.draining.Store(true)
	i := e.instance()
	if i == nil {
		return
	}
	if err := e.tellClients(context.Background(), i, true); err != nil {
		e.Logger.Error("Envoy was not told to drain", "error", err)
		return
	}
	e.drained.Store(true)
	e.Logger.Info("draining, as asked on the status port")
}
