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

// envoyPart runs Envoy, and starts it again when that is asked for.
type envoyPart struct {
	*Agent
	admin    *envoy.Admin
	draining atomic.Bool // clients were told to go
	drained  atomic.Bool // by POST /drain, so that the next stop need not do it again

	mu        sync.Mutex
	process   *envoy.Process
	readiness *envoy.Readiness
	why       string // there is no process
}

func newEnvoyPart(a *Agent) *envoyPart {
	return &envoyPart{Agent: a, admin: envoy.NewAdmin(a.bootstrap.AdminAddress()), why: "Envoy has not been started yet"}
}

func (e *envoyPart) part() part { return part{name: "envoy", run: e.run, health: e.Health} }

// run owns Envoy until the context ends or Envoy does for good.
func (e *envoyPart) run(ctx context.Context) error {
	defer e.admin.Close()
	binary, err := e.find(ctx)
	if err != nil {
		return err
	}
	e.Logger.Info("starting Envoy", "path", binary.Path, "version", binary.Version, "found", binary.Source)
	allowed, restarts := envoyBudget(), 0
	for {
		exit, err := e.once(ctx, binary.Path)
		if err != nil || ctx.Err() != nil {
			return err
		}
		wait, again := allowed.fail(time.Now())
		if !e.Config.Envoy.Restart || !again {
			return &EnvoyEndedError{Exit: exit, Restarts: restarts}
		}
		restarts++
		e.set(nil, fmt.Sprintf("Envoy ended (%s) and is started again", exit))
		e.Logger.Error("Envoy ended and is started again", "why", exit, "after", wait, "restarts", restarts, "tail", exit.Tail)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

func (e *envoyPart) find(ctx context.Context) (envoy.Binary, error) {
	c := e.Config.Envoy
	return envoy.Find(ctx, envoy.FindOptions{Path: c.Path, EnvPath: c.EnvPath, CacheDir: c.CacheDir, PathEnv: c.SearchPath})
}

// once runs one process to its end.
func (e *envoyPart) once(ctx context.Context, path string) (envoy.Exit, error) {
	process, err := envoy.Start(envoy.Config{
		Path: path, Args: e.arguments(), Output: e.EnvoyOutput, Logger: e.Logger,
	})
	if err != nil {
		return envoy.Exit{}, err
	}
	e.set(process, "")
	select {
	case <-process.Done():
	case <-ctx.Done():
		e.stop(process)
	}
	exit := process.Exit()
	e.set(nil, fmt.Sprintf("Envoy ended: %s", exit))
	return exit, nil
}

func (e *envoyPart) arguments() []string {
	p, c := e.Config.Proxy, e.Config.Envoy
	version := "v4"
	if !e.Config.Identity.IPs[0].Unmap().Is4() {
		version = "v6"
	}
	return envoy.Options{
		ConfigPath:            e.file,
		DrainTime:             p.GetDrainDuration().AsDuration(),
		LocalAddressIPVersion: version,
		FileFlushInterval:     p.GetFileFlushInterval().AsDuration(),
		FileFlushMinSizeKB:    int(p.GetFileFlushMinSizeKb()),
		LogLevel:              c.LogLevel,
		ComponentLogLevel:     c.ComponentLogLevel,
		Concurrency:           c.Concurrency,
	}.Args()
}

func (e *envoyPart) set(p *envoy.Process, why string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process, e.why, e.readiness = p, why, nil
	if p != nil {
		e.readiness = envoy.NewReadiness(envoy.ReadinessConfig{Admin: e.admin, Dynamic: true})
	}
}

// Health says whether Envoy takes traffic.
func (e *envoyPart) Health() (ok bool, reason string) {
	e.mu.Lock()
	readiness, why := e.readiness, e.why
	e.mu.Unlock()
	switch {
	case e.draining.Load():
		return false, "the proxy is draining"
	case readiness == nil:
		return false, why
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	return readiness.Check(ctx)
}

// drain answers POST /drain: clients are told to go, and the listeners stay open until the agent is stopped.
func (e *envoyPart) drain() {
	e.draining.Store(true)
	if err := e.tellClients(context.Background(), true); err != nil {
		e.Logger.Error("Envoy was not told to drain", "error", err)
		return
	}
	e.drained.Store(true)
	e.Logger.Info("draining, as asked on the status port")
}
