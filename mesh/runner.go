package mesh

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// runner keeps one instance running: its application, its agent, and its entry in the registry.
type runner struct {
	mesh     *Mesh
	instance *Instance
	files    *sidecarFiles
	attached Attachment
	app      *supervised // nil for a gateway
	agent    *supervised
	probe    *prober
	changed  chan struct{}

	mu      sync.Mutex
	began   time.Time // when it was started, or ceased to be ready
	ready   bool
	late    bool
	lost    bool // a process failed for good
	reasons []string
	silence silence
	traffic rate
}

func (m *Mesh) newRunner(i *Instance) (*runner, error) {
	attached, err := m.placement.Attach(i)
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", i.Name, err)
	}
	r := &runner{mesh: m, instance: i, attached: attached, changed: make(chan struct{}, 1), probe: newProber(i, attached)}
	r.files = &sidecarFiles{dir: m.agentDir(i), instance: i, mesh: m.cfg.Topology.Mesh, issuer: m.authority}
	r.agent = r.supervise("sidecar", OriginSidecar, RestartAlways, r.agentCommand)
	if i.workload.Type != Gateway {
		r.app = r.supervise("application", OriginWorkload, i.workload.Restart, r.appCommand)
		r.app.remedy = func(e Exit) string { return i.bindRemedy(e.Tail...) }
	} else {
		r.agent.what = "gateway"
	}
	return r, nil
}

func (r *runner) supervise(what string, origin Origin, rule RestartRule, c func() (command, error)) *supervised {
	return &supervised{
		what: what, instance: r.instance.Name, origin: origin, rule: rule, command: c, ledger: r.mesh.ledger,
		events: r.mesh.events, changed: r.changed, kill: r.mesh.kill, again: make(chan struct{}, 1),
		status: ProcessStatus{State: ProcessWaiting},
	}
}

func (r *runner) agentCommand() (command, error) {
	env, err := r.mesh.agentEnv(r.instance, r.attached)
	role := "sidecar"
	if r.instance.workload.Type == Gateway {
		role = "router"
	}
	args := append(append([]string(nil), r.mesh.agentCommand...), "proxy", role, "--restart")
	args = append(args, r.mesh.documentedThreads(r.instance)...)
	return command{Args: args, Env: env, Dir: r.files.dir, Enter: r.attached.EnterAgent}, err
}

func (r *runner) appCommand() (command, error) {
	if r.attached.LoseApp != nil {
		if err := r.attached.LoseApp(); err != nil {
			return command{}, fmt.Errorf("leaving the application its ports: %w", err)
		}
	}
	env, err := r.mesh.appEnv(r.instance, r.attached)
	if err != nil {
		return command{}, err
	}
	args, err := r.mesh.appArgs(r.instance)
	return command{Args: args, Env: env, Dir: r.instance.workload.WorkingDir, Enter: r.attached.EnterApp}, err
}

// run keeps the instance running until ctx ends; its processes have ended when it returns. started is called once when
// the instance is ready, or is not going to be soon.
func (r *runner) run(ctx context.Context, started func()) {
	r.setBegan()
	r.mesh.events.publish(Event{Kind: Starting, Instance: r.instance.Name, Origin: OriginMesh, Message: r.instance.Proxy.String()})
	var wg sync.WaitGroup
	wg.Go(func() { r.agent.run(ctx) })
	if r.app != nil {
		wg.Go(func() {
			if r.holdApp(ctx) {
				r.app.run(ctx)
			}
		})
	}
	wg.Go(func() { r.renewProofs(ctx) })
	r.watch(ctx, started)
	r.leave()
	r.quitAgent()
	wg.Wait()
}

// holdApp waits for the sidecar where Istio's holdApplicationUntilProxyStarts asks for that.
func (r *runner) holdApp(ctx context.Context) bool {
	if !r.mesh.cfg.Topology.Mesh.GetDefaultConfig().GetHoldApplicationUntilProxyStarts().GetValue() {
		return true
	}
	for {
		if reasons, _ := r.probe.sidecar(ctx); len(reasons) == 0 {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(startingInterval):
		}
	}
}

// rootsInterval is how often a sidecar's file of roots is compared with the authority's.
const rootsInterval = 2 * time.Second

// renewProofs keeps the files fresh by which the agent and the control plane know each other.
func (r *runner) renewProofs(ctx context.Context) {
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

// How often an instance is looked at: while it starts, and once it is ready.
const (
	startingInterval = 20 * time.Millisecond
	readyInterval    = 250 * time.Millisecond
)

// watch follows the instance's readiness, and keeps the registry and the events true to it.
func (r *runner) watch(ctx context.Context, started func()) {
	release := sync.OnceFunc(started)
	defer release()
	for ctx.Err() == nil {
		seen := r.look(ctx)
		if ctx.Err() != nil {
			return
		}
		interval, borne := startingInterval, r.bears(seen, time.Now())
		switch {
		case borne:
			interval = readyInterval
		case len(seen.reasons) == 0:
			if r.setReady() {
				r.sample(ctx)
			}
			release()
			interval = readyInterval
		default:
			r.setNotReady(seen.reasons, seen.lost)
			late := r.noteLate(seen.reasons)
			switch {
			case seen.unproven > 0: // nothing is left to do but to wait, which others need not wait for
				release()
				interval = min(seen.unproven, readyInterval)
			case seen.lost || late:
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

// sight is what a look at an instance shows.
type sight struct {
	reasons  []string      // that keep it from being ready
	silent   bool          // the reasons are no more than missing answers
	lost     bool          // a process of it failed for good
	unproven time.Duration // how long its application, which runs, has to go on for that to count
}

func (r *runner) look(ctx context.Context) sight {
	seen := r.lookAtApp(ctx)
	agent := r.agent.snapshot()
	reasons, silent := r.lookAtAgent(ctx, agent)
	if len(reasons) > 0 {
		seen.unproven = 0 // there is more to wait for
		seen.silent = silent && (seen.silent || len(seen.reasons) == 0)
	}
	seen.reasons = append(seen.reasons, reasons...)
	seen.lost = seen.lost || agent.State == ProcessFailed
	return seen
}

func (r *runner) lookAtAgent(ctx context.Context, agent ProcessStatus) (reasons []string, silent bool) {
	if why := agent.why(r.agent.what); why != "" {
		return []string{why}, false
	}
	return r.probe.sidecar(ctx)
}

func (r *runner) lookAtApp(ctx context.Context) sight {
	if r.app == nil {
		return sight{}
	}
	app, portless := r.app.snapshot(), len(r.instance.workload.Ports) == 0
	if app.State == ProcessEnded && portless {
		return sight{} // a task that is done
	}
	seen := sight{lost: r.appLost(app.State)}
	why := app.why(r.app.what)
	switch {
	case why != "":
		r.probe.forget()
	case portless:
		if seen.unproven = app.unproven(time.Now()); seen.unproven > 0 {
			why = r.app.what + " has not run for long enough yet to count as ready without a port to ask"
		}
	default:
		why, seen.silent = r.probe.application(ctx)
	}
	if why != "" {
		seen.reasons = []string{why}
	}
	return seen
}

// appLost says whether the application has ended for good, and is missed: a task without ports is done then.
func (r *runner) appLost(state ProcessState) bool {
	return state == ProcessFailed || (state == ProcessEnded && len(r.instance.workload.Ports) > 0)
}

func (r *runner) setBegan() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.began, r.late = time.Now(), false
}

// setReady says whether that is news.
func (r *runner) setReady() bool {
	r.mu.Lock()
	was, took := r.ready, time.Since(r.began)
	r.ready, r.reasons, r.late, r.lost = true, nil, false, false
	r.mu.Unlock()
	if was {
		return false
	}
	r.join()
	r.mesh.events.publish(Event{Kind: Ready, Instance: r.instance.Name, Origin: OriginMesh, Took: took})
	r.mesh.readiness.changed()
	return true
}

func (r *runner) setNotReady(reasons []string, lost bool) {
	r.mu.Lock()
	was := r.ready
	r.ready, r.reasons, r.lost = false, reasons, lost
	if was {
		r.began = time.Now()
	}
	r.mu.Unlock()
	if was {
		r.leave()
		r.mesh.events.publish(Event{Kind: NotReady, Instance: r.instance.Name, Origin: OriginMesh, Message: strings.Join(reasons, "; ")})
	}
	r.mesh.readiness.changed()
}

// noteLate says, once, that the instance took longer than it may.
func (r *runner) noteLate(reasons []string) bool {
	r.mu.Lock()
	late, limit := r.late, r.instance.workload.StartupTimeout
	r.late = late || time.Since(r.began) > limit
	now := r.late
	r.mu.Unlock()
	if now && !late {
		r.mesh.events.publish(Event{Kind: NotReady, Instance: r.instance.Name, Origin: OriginMesh,
			Message: fmt.Sprintf("not ready after %s (startupTimeout), still waiting: %s", limit, strings.Join(reasons, "; "))})
		r.mesh.readiness.changed()
	}
	return now
}

// state is the instance's readiness for others; hopeless says that it will not be ready soon, for the reasons.
func (r *runner) state() (ready bool, reasons []string, hopeless bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ready, append([]string(nil), r.reasons...), !r.ready && (r.lost || r.late)
}

// join puts the instance into the registry, leave takes it out: traffic goes to it only while it is ready.
func (r *runner) join() { r.mesh.registry.Put(r.entry()) }

func (r *runner) leave() { r.mesh.registry.Delete(r.entry().Key) }

// entry is the instance as a WorkloadEntry, which services select by its labels as they select pods.
func (r *runner) entry() *config.Resource {
	return r.instance.workload.entry(r.instance.Name, r.instance.Proxy.String())
}

// tlsModeLabel says of a workload whether its proxy answers by the mesh's mutual TLS. Without it an account would say that it does.
const tlsModeLabel = "security.istio.io/tlsMode"

// entry is one instance of the workload as the registry has it.
func (w *Workload) entry(name, address string) *config.Resource {
	labels := map[string]string{}
	for k, v := range w.Labels {
		labels[k] = v
	}
	// What a gateway speaks at its ports its Gateways say: as in Istio callers take it for the mesh's TLS where a DestinationRule
	// says so, and not by themselves.
	switch {
	case w.Type != Gateway:
		labels[tlsModeLabel] = "istio"
	case labels[tlsModeLabel] == "":
		labels[tlsModeLabel] = "disabled"
	}
	ports := map[string]uint32{}
	for _, p := range w.Ports {
		ports[p.Name] = uint32(p.Port)
	}
	return &config.Resource{
		Key:        config.Key{Kind: config.WorkloadEntry, Namespace: w.Namespace, Name: name},
		APIVersion: "networking.istio.io/v1",
		Labels:     labels,
		Spec: &networking.WorkloadEntry{
			Address: address, Labels: labels, ServiceAccount: w.ServiceAccount, Ports: ports,
		},
	}
}
