package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

// instanceRunner runs one instance: its application, its agent, and its entry in the registry.
type instanceRunner struct {
	mesh       *Mesh
	instance   *topology.Instance
	files      *sidecarFiles // nil without a sidecar
	attachment Attachment
	app        *supervisedProcess // nil for a gateway
	agent      *supervisedProcess // nil without a sidecar
	probe      *prober
	changed    chan struct{}

	mu           sync.Mutex
	waitingSince time.Time // time of the instance's start, or since which it is not ready
	ready        bool
	late         bool
	failed       bool // a process ended with a failure and will not be restarted
	reasons      []string
	silence      silence
	traffic      rate
}

func (m *Mesh) newRunner(i *topology.Instance) (*instanceRunner, error) {
	attached, err := m.placement.Attach(i)
	if err != nil {
		return nil, fmt.Errorf("preparing the network of workload %s: %w", i.Name, err)
	}
	r := &instanceRunner{mesh: m, instance: i, attachment: attached, changed: make(chan struct{}, 1), probe: newProber(i, attached, m.agentDir(i))}
	if i.Workload.Type != topology.Gateway {
		r.app = r.newProcess("application", OriginWorkload, i.Workload.Restart, r.appCommand)
		r.app.remedy = func(e Exit) string { return bindRemedy(i, e.Tail...) }
	}
	if !i.Workload.NoSidecar {
		r.files = &sidecarFiles{dir: m.agentDir(i), instance: i, mesh: m.cfg.Topology.Mesh, issuer: m.authority}
		r.agent = r.newProcess(proxyRole(i.Workload), OriginSidecar, topology.RestartAlways, r.agentCommand)
	}
	return r, nil
}

// proxyRole returns the name of the workload's proxy in messages.
func proxyRole(w *topology.Workload) string {
	if w.Type == topology.Gateway {
		return "gateway"
	}
	return "sidecar"
}

func (r *instanceRunner) newProcess(what string, origin Origin, rule topology.RestartRule, c func() (command, error)) *supervisedProcess {
	return &supervisedProcess{
		budget: newRestartBudget(),
		role:   what, instance: r.instance.Name, origin: origin, rule: rule, command: c, record: r.mesh.record,
		events: r.mesh.events, changed: r.changed, kill: r.mesh.kill, restarts: make(chan struct{}, 1),
		status: ProcessStatus{State: ProcessWaiting},
	}
}

func (r *instanceRunner) agentCommand() (command, error) {
	env, err := r.mesh.agentEnv(r.instance, r.attachment)
	role := "sidecar"
	if r.instance.Workload.Type == topology.Gateway {
		role = "router"
	}
	args := append(append([]string(nil), r.mesh.agentCommand...), "proxy", role, "--restart")
	args = append(args, r.mesh.concurrencyArgs(r.instance)...)
	return command{Args: args, Env: env, Dir: r.files.dir, Enter: r.attachment.EnterAgent}, err
}

func (r *instanceRunner) appCommand() (command, error) {
	if r.attachment.UnexposeApp != nil {
		if err := r.attachment.UnexposeApp(); err != nil {
			return command{}, fmt.Errorf("closing the forwarders of the application's ports: %w", err)
		}
	}
	env, err := r.mesh.appEnv(r.instance, r.attachment)
	if err != nil {
		return command{}, err
	}
	args, err := r.mesh.appArgs(r.instance)
	return command{Args: args, Env: env, Dir: r.instance.Workload.WorkingDir, Enter: r.attachment.EnterApp}, err
}

// run runs the instance until ctx ends and its processes have ended. It calls started once: when the instance is ready,
// or when it will clearly not be ready soon.
func (r *instanceRunner) run(ctx context.Context, started func()) {
	r.resetWaiting()
	r.mesh.events.publish(Event{Kind: Starting, Instance: r.instance.Name, Origin: OriginMesh, Message: r.instance.Proxy.String()})
	var wg sync.WaitGroup
	if r.agent != nil {
		wg.Go(func() { r.agent.run(ctx) })
		wg.Go(func() { r.renewCredentials(ctx) })
	}
	if r.app != nil {
		wg.Go(func() {
			if r.waitForSidecar(ctx) {
				r.app.run(ctx)
			}
		})
	}
	r.watchReadiness(ctx, started)
	r.deregister()
	if r.agent != nil {
		r.quitAgent()
	}
	wg.Wait()
}

// waitForSidecar waits until the sidecar is ready, if Istio's holdApplicationUntilProxyStarts is set. It returns false
// if ctx ends before.
func (r *instanceRunner) waitForSidecar(ctx context.Context) bool {
	if r.agent == nil || !r.mesh.cfg.Topology.Mesh.GetDefaultConfig().GetHoldApplicationUntilProxyStarts().GetValue() {
		return true
	}
	for {
		if reasons, _ := r.probe.sidecar(ctx); len(reasons) == 0 {
			return true
		}
		if !backoff.Sleep(ctx, startingInterval) {
			return false
		}
	}
}

// rootsInterval is the interval at which a sidecar's root file is compared with the CA's roots.
const rootsInterval = 2 * time.Second

// renewCredentials renews the token that authenticates the agent, and the root certificates with which the agent
// verifies the control plane.
func (r *instanceRunner) renewCredentials(ctx context.Context) {
	tokens, roots := time.NewTicker(tokenTTL/2), time.NewTicker(rootsInterval)
	defer tokens.Stop()
	defer roots.Stop()
	for {
		var renew func() error
		select {
		case <-ctx.Done():
			return
		case <-tokens.C:
			renew = r.files.renewToken
		case <-roots.C:
			renew = r.files.renewRoots
		}
		if err := renew(); err != nil {
			r.mesh.events.publish(Event{Kind: Log, Origin: OriginMesh, Instance: r.instance.Name, Line: "error: " + err.Error()})
		}
	}
}

// The intervals at which an instance is checked: while it starts, and after it has become ready.
const (
	startingInterval = 20 * time.Millisecond
	readyInterval    = 250 * time.Millisecond
)

// watchReadiness checks the instance's readiness. When the readiness changes, it updates the registry and publishes an
// event.
func (r *instanceRunner) watchReadiness(ctx context.Context, started func()) {
	release := sync.OnceFunc(started)
	defer release()
	for ctx.Err() == nil {
		seen := r.observe(ctx)
		if ctx.Err() != nil {
			return
		}
		interval, tolerated := startingInterval, r.toleratesSilence(seen, time.Now())
		switch {
		case tolerated:
			interval = readyInterval
		case len(seen.reasons) == 0:
			if r.setReady() {
				r.sample(ctx)
			}
			release()
			interval = readyInterval
		default:
			r.setNotReady(seen.reasons, seen.failed)
			late := r.reportLate(seen.reasons)
			switch {
			// The instance will be ready after some more run time. It must not delay the start of other instances.
			case seen.unsteadyFor > 0:
				release()
				interval = min(seen.unsteadyFor, readyInterval)
			case seen.failed || late:
				release()
				interval = readyInterval
			}
		}
		select {
		case <-ctx.Done():
		case <-r.changed:
		case <-time.After(interval):
		}
	}
}

// observation is the result of one readiness check.
type observation struct {
	reasons     []string      // why the instance is not ready
	silent      bool          // all reasons are timeouts
	failed      bool          // a process ended with a failure and will not be restarted
	unsteadyFor time.Duration // for an application without ports: how much longer it must run to count as ready
}

func (r *instanceRunner) observe(ctx context.Context) observation {
	seen := r.observeApp(ctx)
	if r.agent == nil {
		return seen
	}
	agent := r.agent.snapshot()
	reasons, silent := r.observeAgent(ctx, agent)
	if len(reasons) > 0 {
		// The sidecar is not ready either, so more run time alone would not make the instance ready.
		seen.unsteadyFor = 0
		seen.silent = silent && (seen.silent || len(seen.reasons) == 0)
	}
	seen.reasons = append(seen.reasons, reasons...)
	seen.failed = seen.failed || agent.State == ProcessFailed
	return seen
}

func (r *instanceRunner) observeAgent(ctx context.Context, agent ProcessStatus) (reasons []string, silent bool) {
	if why := agent.notReadyReason(r.agent.role); why != "" {
		return []string{why}, false
	}
	return r.probe.sidecar(ctx)
}

func (r *instanceRunner) observeApp(ctx context.Context) observation {
	if r.app == nil {
		return observation{}
	}
	app, portless := r.app.snapshot(), len(r.instance.Workload.Ports) == 0
	if app.State == ProcessEnded && portless {
		return observation{} // the application is a task that has completed
	}
	seen := observation{failed: r.hasAppFailed(app.State)}
	why := app.notReadyReason(r.app.role)
	switch {
	case why != "":
		r.probe.reset()
	case portless:
		if seen.unsteadyFor = app.unsteadyFor(time.Now()); seen.unsteadyFor > 0 {
			why = r.app.role + " has no port to probe, and has not run long enough to count as ready"
		}
	default:
		why, seen.silent = r.probe.application(ctx)
	}
	if why != "" {
		seen.reasons = []string{why}
	}
	return seen
}

// hasAppFailed reports whether the application failed, or exited although it has ports, and is not restarted. An
// application without ports that exits with status 0 counts as a completed task.
func (r *instanceRunner) hasAppFailed(state ProcessState) bool {
	return state == ProcessFailed || (state == ProcessEnded && len(r.instance.Workload.Ports) > 0)
}

func (r *instanceRunner) resetWaiting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waitingSince, r.late = time.Now(), false
}

// setReady marks the instance as ready. It returns false if it was ready already.
func (r *instanceRunner) setReady() bool {
	r.mu.Lock()
	was, took := r.ready, time.Since(r.waitingSince)
	r.ready, r.reasons, r.late, r.failed = true, nil, false, false
	r.mu.Unlock()
	if was {
		return false
	}
	r.register()
	r.mesh.events.publish(Event{Kind: Ready, Instance: r.instance.Name, Origin: OriginMesh, Took: took})
	r.mesh.readiness.notify()
	return true
}

func (r *instanceRunner) setNotReady(reasons []string, lost bool) {
	r.mu.Lock()
	was := r.ready
	r.ready, r.reasons, r.failed = false, reasons, lost
	if was {
		r.waitingSince = time.Now()
	}
	r.mu.Unlock()
	if was {
		r.deregister()
		r.mesh.events.publish(Event{Kind: NotReady, Instance: r.instance.Name, Origin: OriginMesh, Message: strings.Join(reasons, "; ")})
	}
	r.mesh.readiness.notify()
}

// reportLate reports whether the startup timeout has passed, and publishes an event the first time.
func (r *instanceRunner) reportLate(reasons []string) bool {
	r.mu.Lock()
	late, limit := r.late, r.instance.Workload.StartupTimeout
	r.late = late || time.Since(r.waitingSince) > limit
	now := r.late
	r.mu.Unlock()
	if now && !late {
		r.mesh.events.publish(Event{Kind: NotReady, Instance: r.instance.Name, Origin: OriginMesh,
			Message: fmt.Sprintf("not ready after %s (startupTimeout), still waiting: %s", limit, strings.Join(reasons, "; "))})
		r.mesh.readiness.notify()
	}
	return now
}

// state reports whether the instance is ready. If it is not ready, reasons contains the reasons, and hopeless reports
// whether it will not become ready soon.
func (r *instanceRunner) state() (ready bool, reasons []string, hopeless bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready, append([]string(nil), r.reasons...), !r.ready && (r.failed || r.late)
}

// register adds the instance to the registry, and deregister removes it, because services route only to ready
// instances.
func (r *instanceRunner) register() { r.mesh.registry.Put(r.workloadEntry()) }

func (r *instanceRunner) deregister() { r.mesh.registry.Delete(r.workloadEntry().Key) }

// workloadEntry returns the instance as a WorkloadEntry. As with a pod, services select it by its labels.
func (r *instanceRunner) workloadEntry() *config.Resource {
	return r.instance.Workload.RegistryEntry(r.instance.Name, r.instance.Proxy.String())
}
