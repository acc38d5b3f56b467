package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/agent/logging"
	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// envoyState is the life cycle state of an Envoy.
type envoyState string

// The states of an Envoy, in order. An Envoy enters each state at most once. stateEnded may follow directly after any
// state.
const (
	stateStarting envoyState = "starting" // runs, not ready yet
	stateRunning  envoyState = "running"  // has been ready at least once
	stateDraining envoyState = "draining" // clients are disconnecting gracefully
	stateStopping envoyState = "stopping" // received SIGTERM
	stateGivenUp  envoyState = "given-up" // received SIGKILL, and the kernel has not ended it
	stateEnded    envoyState = "ended"
)

// stateRank orders the states. An unknown state precedes all others.
var stateRank = map[envoyState]int{stateStarting: 1, stateRunning: 2, stateDraining: 3, stateStopping: 4, stateGivenUp: 5, stateEnded: 6}

// envoyInstance is one Envoy process with its admin client.
type envoyInstance struct {
	epoch         int // number of Envoys that the agent started before this one
	process       *envoy.Process
	admin         *envoy.Admin
	ready         *envoy.Readiness
	onStateChange func(i *envoyInstance, from, to envoyState)
	pids          *envoyPIDs

	args      []string
	bootstrap bootstrap.Config
	// hotRestart is nil if this Envoy runs without hot restart. generation is its --restart-epoch in the hot restart
	// group.
	hotRestart *hotRestartGroup
	generation int
	// ownsAdmin is set once this Envoy listens on the admin address. adminLost is set when its successor in a hot
	// restart listens there instead. The agent can then no longer query this Envoy.
	ownsAdmin, adminLost atomic.Bool
	// fallback is the binary to restart if this Envoy exits while its predecessor still drains.
	fallback atomic.Pointer[envoy.Binary]
	// predecessor is the Envoy that this one replaces, until it has exited.
	predecessor atomic.Pointer[envoyInstance]

	// versionKnown is closed when the version is confirmed or cannot be confirmed; see checkVersion.
	versionKnown chan struct{}

	mu         sync.Mutex
	state      envoyState
	since      time.Time
	file       envoy.Binary // its version may be confirmed after the start
	versionErr error        // why the version is not supported; set before versionKnown is closed
	arrivals   arrivalHistory
}

// launchSpec contains the parameters with which an Envoy is started.
type launchSpec struct {
	binary envoy.Binary
	args   []string

	bootstrap  bootstrap.Config
	hotRestart *hotRestartGroup
	generation int
}

// start starts an Envoy. The Envoy does not become the current instance yet.
func (e *envoySupervisor) start(l launchSpec) (*envoyInstance, error) {
	process, err := e.envoyPIDs.add(func() (*envoy.Process, error) {
		return envoy.Start(envoy.Config{Path: l.binary.Path, Args: l.args, Output: e.EnvoyOutput, Rewrite: (&logging.EnvoyRedactor{}).RedactLine, Logger: e.Logger,
			User: e.Config.Envoy.User, NoNewPrivileges: !e.mayGainPrivileges(l.binary.Path)})
	})
	if err != nil {
		return nil, err
	}
	admin := envoy.NewAdmin(l.bootstrap.AdminAddress())
	i := &envoyInstance{
		file: l.binary, versionKnown: make(chan struct{}), epoch: e.upgrades.nextEpoch(), process: process, pids: &e.envoyPIDs, admin: admin, onStateChange: e.onStateChange,
		ready: envoy.NewReadiness(envoy.ReadinessConfig{Admin: admin, Dynamic: true}),
		args:  l.args, bootstrap: l.bootstrap, hotRestart: l.hotRestart, generation: l.generation,
		arrivals: startArrivals(),
	}
	if !l.binary.Unconfirmed {
		close(i.versionKnown)
	}
	i.hotRestart.addMember()
	i.setState(stateStarting)
	return i, nil
}

// mayGainPrivileges reports whether to start the Envoy at path without no_new_privs. With no_new_privs, the kernel
// ignores capabilities of the file, such as CAP_NET_BIND_SERVICE.
func (e *envoySupervisor) mayGainPrivileges(path string) bool {
	if envoy.HasPrivileges(path) {
		e.Logger.Info("Envoy starts without no_new_privs, because its file has capabilities or a set-user-ID bit", "path", path)
		return true
	}
	return e.Config.Envoy.KeepPrivileges
}

// setState changes the state. It ignores a change to an earlier state, because requests and exits arrive concurrently.
func (i *envoyInstance) setState(s envoyState) {
	i.mu.Lock()
	from := i.state
	forward := stateRank[s] > stateRank[i.state]
	if forward {
		i.state, i.since = s, time.Now()
	}
	i.mu.Unlock()
	if forward && i.onStateChange != nil {
		i.onStateChange(i, from, s)
	}
}

// binary returns the binary, whose version may not be known yet.
func (i *envoyInstance) binary() envoy.Binary {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.file
}

// status returns the state and the time of its last change.
func (i *envoyInstance) status() (envoyState, time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state, i.since
}

// checkReady reports whether the instance is ready, and the reason if not.
func (i *envoyInstance) checkReady(ctx context.Context) (ok bool, reason string) {
	c := i.condition(ctx)
	return c.OK, c.Reason
}

// condition returns the readiness of the instance, with reason and remedy.
func (i *envoyInstance) condition(ctx context.Context) health.Condition {
	if i.adminLost.Load() { // the agent cannot query this Envoy, so it uses the last known state
		state, _ := i.status()
		return health.Condition{OK: state == stateRunning, Reason: "the agent cannot query this Envoy, because the new Envoy of a hot restart uses the admin address"}
	}
	c := i.ready.Condition(ctx)
	if c.OK {
		c = i.addVersionProblem(ctx, c)
	}
	if c.OK {
		i.setState(stateRunning)
	}
	return c
}

// waitEnd waits until the process has exited, or the agent has stopped waiting for it, and returns the exit.
func (i *envoyInstance) waitEnd() envoy.Exit {
	exit := i.process.Exit()
	if exit.HungThreads != "" {
		i.setState(stateGivenUp)
	} else {
		i.markEnded()
	}
	i.admin.Close()
	return exit
}

// markEnded removes the PID from the set of Envoys' PIDs and sets stateEnded. The caller calls it when the process has
// ended.
func (i *envoyInstance) markEnded() {
	i.pids.remove(i.process.PID())
	i.setState(stateEnded)
}

// waitAndCleanUp waits for the exit of the process, and removes the shared files if it was the last member of its hot
// restart group.
func (i *envoyInstance) waitAndCleanUp(logger *slog.Logger) {
	i.waitEnd()
	if err := i.hotRestart.removeMember(); err != nil {
		logger.Warn("cannot remove Envoy's hot restart files", "error", err)
	}
}
