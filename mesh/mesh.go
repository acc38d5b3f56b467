package mesh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/ca"
	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/mesh/topology"
)

const defaultStopTimeout = 5 * time.Second

// maxStartingPerCPU limits the number of instances per CPU that start at the same time. More would not be faster,
// because they would compete for CPU time.
const maxStartingPerCPU = 4

// Config configures a mesh. Only Topology and Environ are required.
type Config struct {
	Topology *topology.Topology
	// Environ is the environment, in the form of os.Environ. Applications inherit it. ENVOY_PATH, PATH and HOME
	// determine where Envoy is searched. Agents inherit only inheritedVariables.
	Environ []string
	// RuntimeDir is the directory that contains one directory for each running mesh; default: DefaultRuntimeDir.
	RuntimeDir string
	// StateDir stores the control plane's state (the CA's root) between runs. If it is empty, the state is in the
	// runtime directory and is removed when the mesh stops.
	StateDir string
	// Network determines how workloads connect to each other; default: Loopback.
	Network Network
	// SelfPath is the value of ${PILOTFISH}; default: the running executable.
	SelfPath string
	// AgentCommand starts the agent; default: findAgent.
	AgentCommand []string
	// EnvoyPath is the preferred Envoy binary (--envoy-path).
	EnvoyPath string
	// GuardCommand starts the process that cleans up if this process is killed (see NewGuardCommand). The mesh appends
	// the guard's arguments. If it is empty, no guard is started.
	GuardCommand []string
	// OnInvalidPolicy determines what a policy does to its workloads if none of its versions was valid; default: deny.
	OnInvalidPolicy config.OnInvalidPolicy
	// AllowUnix lists paths of unix sockets, or directories of sockets. Endpoints of documents may use them, in
	// addition to the topology's directory and the directory for temporary files.
	AllowUnix []string
	// StopTimeout is how long processes may run after a stop request. After this time, they are killed; default 5 s.
	StopTimeout time.Duration
}

// Mesh is one mesh on this machine.
type Mesh struct {
	cfg       Config
	events    *eventStream
	registry  *config.MemoryStore
	readiness *broadcast
	// ruleUpdates requests updates of the forwarding rules. The channel in a request is closed after the update.
	ruleUpdates chan chan struct{}
	kill        chan struct{} // closed when processes that are stopping must be killed immediately
	killOnce    sync.Once
	runID       string
	stopCtx     context.Context // canceled by Stop; its cause is the reason
	stop        context.CancelCauseFunc

	// Run sets these fields during the start. mu guards them.
	mu           sync.Mutex
	started      time.Time
	envoy        envoy.Binary
	agentCommand []string
	runtime      *runtimeDir
	placement    Placement
	authority    *ca.Authority
	record       *runRecord
	controlPlane *controlPlane
	runners      []*instanceRunner
	done         chan struct{}
	cleanups     []func()
}

// New validates the configuration. It starts no process and claims no resource.
func New(cfg Config) (*Mesh, error) {
	if err := checkPlatform(); err != nil {
		return nil, err
	}
	if cfg.Topology == nil {
		return nil, errors.New("no topology is specified: set Config.Topology")
	}
	if cfg.RuntimeDir == "" {
		cfg.RuntimeDir = DefaultRuntimeDir(lookupEnv(cfg.Environ, "XDG_RUNTIME_DIR"), os.Getuid())
	}
	if cfg.Network == nil {
		cfg.Network = Loopback{}
	}
	if cfg.StopTimeout == 0 {
		cfg.StopTimeout = defaultStopTimeout
	}
	if cfg.SelfPath == "" {
		self, err := ownExecutable()
		if err != nil {
			return nil, fmt.Errorf("finding the running executable: %w", err)
		}
		cfg.SelfPath = self
	}
	for _, path := range []*string{&cfg.RuntimeDir, &cfg.StateDir, &cfg.Topology.File} {
		if *path != "" {
			abs, err := filepath.Abs(*path)
			if err != nil {
				return nil, fmt.Errorf("determining the working directory: %w", err)
			}
			*path = abs
		}
	}
	m := &Mesh{
		cfg: cfg, events: newEventStream(), registry: config.NewMemoryStore(), readiness: newBroadcast(), ruleUpdates: make(chan chan struct{}),
		kill: make(chan struct{}), runID: newRunID(), done: make(chan struct{}),
	}
	m.stopCtx, m.stop = context.WithCancelCause(context.Background())
	return m, nil
}

// Name returns the mesh's name.
func (m *Mesh) Name() string { return m.cfg.Topology.Name }

// RuntimePath returns the mesh's directory. The directory exists while the mesh runs.
func (m *Mesh) RuntimePath() string { return filepath.Join(m.cfg.RuntimeDir, m.Name()) }

// Run starts the mesh, supervises it, and stops it when ctx ends or Stop is called. It then releases all resources. It
// returns nil if the mesh was stopped normally, and an error with a remedy if the mesh cannot be started. It may be
// called only once.
func (m *Mesh) Run(ctx context.Context) error {
	defer m.events.close()
	defer close(m.done)
	defer m.runCleanups()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.stopCtx, func() { cancel(context.Cause(m.stopCtx)) })()
	m.mu.Lock()
	m.started = time.Now()
	m.mu.Unlock()
	for _, step := range m.startSteps() {
		if err := step(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	m.runInstances(ctx)
	return nil
}

// startSteps returns the steps of the start, in order. Each step appends its cleanup function to m.cleanups.
func (m *Mesh) startSteps() []func(context.Context) error {
	return []func(context.Context) error{
		m.findPrograms, m.startGuard, m.claimName, m.claimNetwork, m.openAuthority, m.openRunRecord,
		m.prepareInstances, m.startControlPlane, m.openControlSocket,
	}
}

// runCleanups runs the cleanups in reverse order.
func (m *Mesh) runCleanups() {
	for i := len(m.cleanups) - 1; i >= 0; i-- {
		m.cleanups[i]()
	}
}

func (m *Mesh) addCleanup(f func()) { m.cleanups = append(m.cleanups, f) }

func (m *Mesh) findPrograms(ctx context.Context) error {
	found, err := envoy.Find(ctx, m.cfg.envoyOptions())
	if err != nil {
		return err
	}
	agent := m.cfg.AgentCommand
	if len(agent) == 0 {
		agent = findAgent(m.cfg.SelfPath, lookupEnv(m.cfg.Environ, "PATH"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.envoy, m.agentCommand = found, agent
	return nil
}

func (m *Mesh) claimName(context.Context) error {
	dir, err := claimRuntimeDir(m.cfg.RuntimeDir, m.Name())
	if err != nil {
		return err
	}
	m.addCleanup(dir.remove)
	m.mu.Lock()
	m.runtime = dir
	m.mu.Unlock()
	m.logKilled(dir.leftovers, "an earlier run of this mesh had left")
	return nil
}

func (m *Mesh) claimNetwork(context.Context) error {
	placement, err := m.cfg.Network.Claim(m.cfg.Topology, Resources{
		Agent: m.agentCommand, Environ: m.inheritedEnv(), Dir: filepath.Join(m.runtime.path, networkDir),
		LookupService: m.lookupService, Logf: m.logf,
	})
	if err != nil {
		return fmt.Errorf("claiming the mesh's network: %w", err)
	}
	m.addCleanup(func() { _ = placement.Release() })
	m.mu.Lock()
	m.placement = placement
	m.mu.Unlock()
	m.events.publish(Event{Kind: MeshStarting, Origin: OriginMesh,
		Message: fmt.Sprintf("mesh %s at %s%s, Envoy %s", m.Name(), placement.Describe(), captureSuffix(placement), m.envoy.Version)})
	if report := m.envoy.Version.Advisories(); !report.IsEmpty() {
		m.logf("warning: %s", report)
	}
	return nil
}

func captureSuffix(p Placement) string {
	if p.Captured() {
		return " with redirection to the sidecars"
	}
	return ""
}

func (m *Mesh) openAuthority(context.Context) error {
	// The control plane performs the rotations of the CA. This process only reads their results.
	authority, err := ca.Load(m.stateDir(), ca.Options{TrustDomain: m.cfg.Topology.TrustDomain, RotateBefore: -1})
	if err != nil {
		return err // the error already contains the directory and the remedy
	}
	m.authority = authority
	return nil
}

func (m *Mesh) stateDir() string {
	if m.cfg.StateDir != "" {
		return m.cfg.StateDir
	}
	return filepath.Join(m.runtime.path, controlDir)
}

func (m *Mesh) openRunRecord(context.Context) (err error) {
	m.record, err = newRunRecord(m.runtime.path, m.runID)
	m.addCleanup(m.killStragglers)
	return err
}

// killStragglers kills processes of applications and agents that still run: those that left their process groups, and
// Envoys whose agent was killed.
func (m *Mesh) killStragglers() {
	if m.record == nil {
		return
	}
	programs, err := m.record.run.kill()
	if err != nil {
		m.logf("error: %v", err)
		return
	}
	m.logKilled(programs, "outlived their parent processes")
}

// logKilled logs the processes that had to be killed. It logs program names, so that the user recognizes the processes.
func (m *Mesh) logKilled(programs []string, cause string) {
	if len(programs) > 0 {
		m.logf("killed processes that %s (%d): %s", cause, len(programs), strings.Join(slices.Compact(slices.Sorted(slices.Values(programs))), ", "))
	}
}

// prepareInstances creates every instance's directory and checks that its ports are free.
func (m *Mesh) prepareInstances(context.Context) error {
	runners, err := m.newRunners(m.placement.Instances())
	if err != nil {
		return err
	}
	var problems []error
	for _, r := range runners {
		problems = append(problems, r.attachment.Check())
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for _, r := range runners {
		if r.files == nil {
			continue
		}
		if err := r.files.write(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.runners = runners
	m.mu.Unlock()
	return nil
}

// newRunners creates the runners concurrently, because it takes long to create a network namespace with its rules.
func (m *Mesh) newRunners(instances []*topology.Instance) ([]*instanceRunner, error) {
	runners, problems := make([]*instanceRunner, len(instances)), make([]error, len(instances))
	slots := make(chan struct{}, maxStartingPerCPU*runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for n, i := range instances {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			runners[n], problems[n] = m.newRunner(i)
		})
	}
	wg.Wait()
	for _, err := range problems { // one error is sufficient, because the cause is usually the same for all instances
		if err != nil {
			return nil, err
		}
	}
	return runners, nil
}

// runInstances runs all instances until the mesh is stopped, and then stops them.
func (m *Mesh) runInstances(ctx context.Context) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	slots := make(chan struct{}, maxStartingPerCPU*runtime.GOMAXPROCS(0))
	for _, r := range m.runners {
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				r.run(running, func() { <-slots })
			case <-running.Done():
			}
		})
	}
	m.readiness.notify()
	wg.Go(func() { m.sampleTraffic(running) })
	wg.Go(func() { m.authority.Run(running, rootsInterval, func() {}) })
	wg.Go(func() { m.announceReady(running) })
	wg.Go(func() { m.controlPlane.supervise(running) })
	if m.placement.Captured() {
		wg.Go(func() { m.forwardUDP(running) })
	}
	<-ctx.Done()
	m.events.publish(Event{Kind: MeshStopping, Origin: OriginMesh, Message: context.Cause(ctx).Error()})
	timer := time.AfterFunc(m.cfg.StopTimeout, m.Kill)
	defer timer.Stop()
	stop()
	wg.Wait()
}

// Events returns a new subscription to events. To receive all events, subscribe before Run.
func (m *Mesh) Events() *Subscription { return m.events.subscribe() }

// Stop ends the mesh as if Run's context had ended. It does not wait. Run returns when the mesh has ended.
func (m *Mesh) Stop(reason string) {
	m.stop(errors.New(reason))
}

// Kill kills the processes of a stopping mesh immediately, before StopTimeout has passed.
func (m *Mesh) Kill() { m.killOnce.Do(func() { close(m.kill) }) }

// Instances returns the instances with their addresses, or nil before the addresses are assigned.
func (m *Mesh) Instances() []*topology.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.placement == nil {
		return nil
	}
	return m.placement.Instances()
}

func (m *Mesh) snapshotRunners() []*instanceRunner {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runners
}

// StopControlPlane stops the embedded control plane. Proxies continue with their last accepted configuration.
func (m *Mesh) StopControlPlane(context.Context) error {
	p := m.currentControlPlane()
	if p == nil {
		return errNotStarted
	}
	return p.stop()
}

// StartControlPlane starts a stopped control plane with its previous state. It returns when the control plane serves
// clients.
func (m *Mesh) StartControlPlane(ctx context.Context) error {
	p := m.currentControlPlane()
	if p == nil {
		return errNotStarted
	}
	return p.start(ctx)
}

var errNotStarted = errors.New("the mesh is still starting")

func (m *Mesh) currentControlPlane() *controlPlane {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.controlPlane
}

// Restart restarts the application of an instance, or of all instances of a workload. For a gateway, it restarts the
// proxy. It does not wait for the restart.
func (m *Mesh) Restart(_ context.Context, name string) error {
	found := false
	for _, r := range m.snapshotRunners() {
		if r.instance.Name != name && r.instance.Workload.Name != name {
			continue
		}
		found = true
		if r.app != nil {
			r.app.restart()
		} else {
			r.agent.restart()
		}
	}
	if !found {
		return fmt.Errorf("mesh %s has no workload %q: `pilotfish status` lists the workloads", m.Name(), name)
	}
	return nil
}

func (m *Mesh) logf(format string, args ...any) {
	m.events.publish(Event{Kind: Log, Origin: OriginMesh, Line: fmt.Sprintf(format, args...)})
}
