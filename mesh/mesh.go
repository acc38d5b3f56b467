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
)

const defaultStopTimeout = 5 * time.Second

// startingPerCPU is how many instances start at a time, for each processor: more would only wait for each other.
const startingPerCPU = 4

// Config says how a mesh is run. Only Topology and Environ are required.
type Config struct {
	Topology *Topology
	// Environ is the environment, as of os.Environ. Applications inherit it; Envoy is looked for by its ENVOY_PATH, PATH
	// and HOME; agents inherit only what they must.
	Environ []string
	// RuntimeDir is the folder that holds one folder for each running mesh; default: DefaultRuntimeDir.
	RuntimeDir string
	// StateDir keeps the control plane's state (the CA's root) from run to run; empty: it lives in the runtime directory
	// and ends with the mesh.
	StateDir string
	// Network is how workloads reach each other; default: Loopback.
	Network Network
	// SelfPath is the executable that ${PILOTFISH} stands for; default: the running one.
	SelfPath string
	// AgentCommand starts the agent; default: see FindAgent.
	AgentCommand []string
	// EnvoyPath is an Envoy to use before any other (--envoy-path).
	EnvoyPath string
	// GuardCommand starts the process that cleans up should this one be killed (see NewGuardCommand); empty: none. What
	// the guard needs to know is appended to it.
	GuardCommand []string
	// StopTimeout is how long processes have to end before they are killed; default 5 s.
	StopTimeout time.Duration
}

// Mesh is one mesh on this machine.
type Mesh struct {
	cfg       Config
	events    *stream
	registry  *config.MemoryStore
	readiness *broadcast
	kill      chan struct{} // closed when processes that are stopping have to end at once
	killOnce  sync.Once
	runID     string
	asked     context.Context // ends when Stop is called; its cause is the reason
	stop      context.CancelCauseFunc

	// What Run fills in while it starts; guarded by mu for those who ask meanwhile.
	mu           sync.Mutex
	started      time.Time
	envoy        envoy.Binary
	agentCommand []string
	runtime      *runtimeDir
	placement    Placement
	authority    *ca.Authority
	ledger       *ledger
	plane        *plane
	runners      []*runner
	ended        chan struct{}
	undo         []func()
}

// New checks the configuration. It starts nothing and takes nothing.
func New(cfg Config) (*Mesh, error) {
	if err := checkPlatform(); err != nil {
		return nil, err
	}
	if cfg.Topology == nil {
		return nil, errors.New("a mesh needs a topology")
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
				return nil, fmt.Errorf("finding the working directory: %w", err)
			}
			*path = abs
		}
	}
	m := &Mesh{
		cfg: cfg, events: newStream(), registry: config.NewMemoryStore(), readiness: newBroadcast(),
		kill: make(chan struct{}), runID: newRunID(), ended: make(chan struct{}),
	}
	m.asked, m.stop = context.WithCancelCause(context.Background())
	return m, nil
}

// Name is the mesh's name.
func (m *Mesh) Name() string { return m.cfg.Topology.Name }

// RuntimePath is the mesh's own folder for as long as it runs.
func (m *Mesh) RuntimePath() string { return filepath.Join(m.cfg.RuntimeDir, m.Name()) }

// Run starts the mesh, watches over it, and stops it when ctx ends (or Stop is called), leaving nothing behind. It
// returns nil after an ordered end, and an error that says what to do when the mesh could not be started. It can be
// called once.
func (m *Mesh) Run(ctx context.Context) error {
	defer m.events.close()
	defer close(m.ended)
	defer m.unwind()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(m.asked, func() { cancel(context.Cause(m.asked)) })()
	m.mu.Lock()
	m.started = time.Now()
	m.mu.Unlock()
	for _, step := range m.steps() {
		if err := step(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	m.watchOver(ctx)
	return nil
}

// steps are what it takes to start, in order. Each leaves in m.undo what takes it back.
func (m *Mesh) steps() []func(context.Context) error {
	return []func(context.Context) error{
		m.findPrograms, m.startGuard, m.claimName, m.claimNetwork, m.openAuthority, m.openLedger,
		m.prepareInstances, m.startControlPlane, m.openControlSocket,
	}
}

// unwind takes back what the steps did, the last first.
func (m *Mesh) unwind() {
	for i := len(m.undo) - 1; i >= 0; i-- {
		m.undo[i]()
	}
}

func (m *Mesh) onEnd(f func()) { m.undo = append(m.undo, f) }

func (m *Mesh) findPrograms(ctx context.Context) error {
	found, err := envoy.Find(ctx, m.cfg.envoyOptions())
	if err != nil {
		return err
	}
	agent := m.cfg.AgentCommand
	if len(agent) == 0 {
		agent = FindAgent(m.cfg.SelfPath, lookupEnv(m.cfg.Environ, "PATH"))
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
	m.onEnd(dir.remove)
	m.mu.Lock()
	m.runtime = dir
	m.mu.Unlock()
	m.sayEnded(dir.leftovers, "an earlier run of this mesh had left")
	return nil
}

func (m *Mesh) claimNetwork(context.Context) error {
	placement, err := m.cfg.Network.Claim(m.cfg.Topology, Resources{
		Agent: m.agentCommand, Environ: m.inheritedEnv(), Dir: filepath.Join(m.runtime.path, networkDir), Say: m.say,
	})
	if err != nil {
		return fmt.Errorf("taking addresses for the mesh: %w", err)
	}
	m.onEnd(func() { _ = placement.Release() })
	m.mu.Lock()
	m.placement = placement
	m.mu.Unlock()
	m.events.publish(Event{Kind: MeshStarting, Origin: OriginMesh,
		Message: fmt.Sprintf("mesh %s at %s%s, Envoy %s", m.Name(), placement.Describe(), howCaptured(placement), m.envoy.Version)})
	return nil
}

func howCaptured(p Placement) string {
	if p.Captured() {
		return " with captured traffic"
	}
	return ""
}

func (m *Mesh) openAuthority(context.Context) error {
	// The control plane takes the steps of a rotation; here they are followed.
	authority, err := ca.Load(m.stateDir(), ca.Options{TrustDomain: m.cfg.Topology.TrustDomain, RotateBefore: -1})
	if err != nil {
		return err // it names the directory and the remedy
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

func (m *Mesh) openLedger(context.Context) (err error) {
	m.ledger, err = openLedger(m.runtime.path, m.runID)
	m.onEnd(m.sweep)
	return err
}

// sweep ends what is left of applications and agents: what left their process groups, and Envoys whose agent was killed.
func (m *Mesh) sweep() {
	if m.ledger == nil {
		return
	}
	programs, err := m.ledger.run.kill()
	if err != nil {
		m.say("error: %v", err)
		return
	}
	m.sayEnded(programs, "had outlived what started them")
}

// sayEnded tells of processes that had to be ended, by their programs, since whose they were is the first question.
func (m *Mesh) sayEnded(programs []string, that string) {
	if len(programs) > 0 {
		m.say("ended processes that %s (%d): %s", that, len(programs), strings.Join(slices.Compact(slices.Sorted(slices.Values(programs))), ", "))
	}
}

// prepareInstances lays out every instance's directory and makes sure that its ports are free.
func (m *Mesh) prepareInstances(context.Context) error {
	runners, err := m.newRunners(m.placement.Instances())
	if err != nil {
		return err
	}
	var problems []error
	for _, r := range runners {
		problems = append(problems, r.attached.Check())
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	for _, r := range runners {
		if err := r.files.write(); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.runners = runners
	m.mu.Unlock()
	return nil
}

// newRunners makes all of them, some at a time: a network namespace with its rules takes a while.
func (m *Mesh) newRunners(instances []*Instance) ([]*runner, error) {
	runners, problems := make([]*runner, len(instances)), make([]error, len(instances))
	slots := make(chan struct{}, startingPerCPU*runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for n, i := range instances {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			runners[n], problems[n] = m.newRunner(i)
		})
	}
	wg.Wait()
	for _, err := range problems { // one says enough: what is wrong with one is wrong with all
		if err != nil {
			return nil, err
		}
	}
	return runners, nil
}

// watchOver runs all instances until the mesh is to stop, and stops them.
func (m *Mesh) watchOver(ctx context.Context) {
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var wg sync.WaitGroup
	slots := make(chan struct{}, startingPerCPU*runtime.GOMAXPROCS(0))
	for _, r := range m.runners {
		wg.Go(func() {
			select {
			case slots <- struct{}{}:
				r.run(running, func() { <-slots })
			case <-running.Done():
			}
		})
	}
	m.readiness.changed()
	wg.Go(func() { m.sampleTraffic(running) })
	wg.Go(func() { m.authority.Run(running, rootsInterval, func() {}) })
	wg.Go(func() { m.announceReady(running) })
	wg.Go(func() { m.plane.keepUp(running) })
	if m.placement.Captured() {
		wg.Go(func() { m.leadDatagrams(running) })
	}
	<-ctx.Done()
	m.events.publish(Event{Kind: MeshStopping, Origin: OriginMesh, Message: context.Cause(ctx).Error()})
	timer := time.AfterFunc(m.cfg.StopTimeout, m.Kill)
	defer timer.Stop()
	stop()
	wg.Wait()
}

// Events begins a subscription to what happens. Subscribe before Run to miss nothing.
func (m *Mesh) Events() *Subscription { return m.events.subscribe() }

// Stop ends the mesh as the end of Run's context does. Run returns when it is done.
func (m *Mesh) Stop(reason string) {
	m.stop(errors.New(reason))
}

// Kill ends the processes of a mesh that is stopping at once, without the rest of their grace.
func (m *Mesh) Kill() { m.killOnce.Do(func() { close(m.kill) }) }

// Instances are the instances with their addresses; none before they are placed.
func (m *Mesh) Instances() []*Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.placement == nil {
		return nil
	}
	return m.placement.Instances()
}

func (m *Mesh) snapshotRunners() []*runner {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runners
}

// StopControlPlane stops the embedded control plane; proxies go on with what they have.
func (m *Mesh) StopControlPlane(context.Context) error {
	p := m.currentPlane()
	if p == nil {
		return errNotStarted
	}
	return p.stop()
}

// StartControlPlane starts it again, with the state it had, and returns once it serves.
func (m *Mesh) StartControlPlane(ctx context.Context) error {
	p := m.currentPlane()
	if p == nil {
		return errNotStarted
	}
	return p.start(ctx)
}

var errNotStarted = errors.New("the mesh has not come so far yet")

func (m *Mesh) currentPlane() *plane {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plane
}

// Restart ends the application of an instance (of a gateway: its proxy), or of all instances of a workload, and starts
// it again. It does not wait for that.
func (m *Mesh) Restart(_ context.Context, name string) error {
	found := false
	for _, r := range m.snapshotRunners() {
		if r.instance.Name != name && r.instance.workload.Name != name {
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
		return fmt.Errorf("mesh %s has no workload %q: `pilotfish status` lists those it has", m.Name(), name)
	}
	return nil
}

func (m *Mesh) say(format string, args ...any) {
	m.events.publish(Event{Kind: Log, Origin: OriginMesh, Line: fmt.Sprintf(format, args...)})
}
