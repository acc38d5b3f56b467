package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// State is how far an Envoy's life has got.
type State string

// The states of an Envoy, in the order in which it goes through them. None is entered twice, and any may be the last
// before Ended.
const (
	Starting State = "starting" // it runs, and does not take traffic yet
	Running  State = "running"  // it took traffic at least once
	Draining State = "draining" // its clients were told to go
	Stopping State = "stopping" // it was told to end
	GivenUp  State = "given-up" // it was killed, and the kernel has not ended it
	Ended    State = "ended"
)

// rank is the place of each state; a state that is not there is before all of them.
var rank = map[State]int{Starting: 1, Running: 2, Draining: 3, Stopping: 4, GivenUp: 5, Ended: 6}

// instance is one Envoy process, with what it takes to ask and to end it.
type instance struct {
	binary  envoy.Binary
	epoch   int // counts the processes of one agent, from 0
	process *envoy.Process
	admin   *envoy.Admin
	ready   *envoy.Readiness
	changed func(i *instance, from, to State)
	family  *family

	args      []string
	bootstrap bootstrap.Config
	// With hot restart there is a lineage, in which it has its generation.
	lineage    *lineage
	generation int
	// owns is set once it has the admin address, adminGone when another Envoy has taken that: then it cannot be asked.
	owns, adminGone atomic.Bool
	// fallback is the binary to go back to when this one ends before the one that it took over from.
	fallback atomic.Pointer[envoy.Binary]
	// elder is the one that it took over from.
	elder atomic.Pointer[instance]

	mu    sync.Mutex
	state State
	since time.Time
}

// launch says what an instance is started with.
type launch struct {
	binary envoy.Binary
	args   []string

	bootstrap  bootstrap.Config
	lineage    *lineage
	generation int
}

// start starts an Envoy. It is not the current one yet.
func (e *envoyPart) start(l launch) (*instance, error) {
	process, err := e.family.add(func() (*envoy.Process, error) {
		return envoy.Start(envoy.Config{Path: l.binary.Path, Args: l.args, Output: e.EnvoyOutput, Rewrite: (&envoyWords{}).line, Logger: e.Logger, User: e.Config.Envoy.User})
	})
	if err != nil {
		return nil, err
	}
	admin := envoy.NewAdmin(l.bootstrap.AdminAddress())
	i := &instance{
		binary: l.binary, epoch: e.upgrades.number(), process: process, family: &e.family, admin: admin, changed: e.noteState,
		ready: envoy.NewReadiness(envoy.ReadinessConfig{Admin: admin, Dynamic: true}),
		args:  l.args, bootstrap: l.bootstrap, lineage: l.lineage, generation: l.generation,
	}
	i.lineage.join()
	i.enter(Starting)
	return i, nil
}

// enter moves on to a state; it never goes back, since orders and ends come from several sides.
func (i *instance) enter(s State) {
	i.mu.Lock()
	from := i.state
	forward := rank[s] > rank[i.state]
	if forward {
		i.state, i.since = s, time.Now()
	}
	i.mu.Unlock()
	if forward && i.changed != nil {
		i.changed(i, from, s)
	}
}

// status is the state and since when it is that.
func (i *instance) status() (State, time.Time) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state, i.since
}

// check asks the instance whether it takes traffic.
func (i *instance) check(ctx context.Context) (ok bool, reason string) {
	c := i.condition(ctx)
	return c.OK, c.Reason
}

// condition asks the instance whether it takes traffic, and what to do when it does not.
func (i *instance) condition(ctx context.Context) health.Condition {
	if i.adminGone.Load() { // what it last said of itself has to do
		state, _ := i.status()
		return health.Condition{OK: state == Running, Reason: "Envoy has given its admin interface to the one that is to take over"}
	}
	c := i.ready.Condition(ctx)
	if c.OK {
		i.enter(Running)
	}
	return c
}

// end waits for the end of the process, or until that is given up.
func (i *instance) end() envoy.Exit {
	exit := i.process.Exit()
	if exit.Remains != "" {
		i.enter(GivenUp)
	} else {
		i.buried()
	}
	i.admin.Close()
	return exit
}

// buried is for an instance whose process is gone.
func (i *instance) buried() {
	i.family.remove(i.process.PID())
	i.enter(Ended)
}

// leave waits for the end of the process, and removes what nobody uses any more.
func (i *instance) leave(logger *slog.Logger) {
	i.end()
	if err := i.lineage.leave(); err != nil {
		logger.Warn("what Envoy left behind stays", "error", err)
	}
}
