package agent

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/backoff"
	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// component is a long-running task of the agent.
type component struct {
	name string
	run  func(context.Context) error
	// restart makes a failed component start again with backoff; otherwise its failure stops the agent.
	restart bool
	// health is called by readiness probes; nil if readiness does not depend on the component.
	health health.Check
}

// componentGroup runs components until their context ends.
type componentGroup struct {
	logger *slog.Logger
	wait   sync.WaitGroup
	failed chan error // receives the first failure of a component without restart

	mu      sync.Mutex
	running map[string]int // number of running components by name
}

func newComponentGroup(logger *slog.Logger) *componentGroup {
	return &componentGroup{logger: logger, failed: make(chan error, 1), running: map[string]int{}}
}

// start runs p in a goroutine of the group. If p fails permanently, start sends the error to g.failed.
func (g *componentGroup) start(ctx context.Context, p component) {
	g.run(p.name, func() {
		if err := g.runWithRestarts(ctx, p); err != nil {
			select {
			case g.failed <- err:
			default: // an earlier failure already stops the agent
			}
		}
	})
}

// run runs a function in a goroutine of the group.
func (g *componentGroup) run(name string, do func()) {
	g.addRunning(name, 1)
	g.wait.Go(func() {
		defer g.addRunning(name, -1)
		do()
	})
}

func (g *componentGroup) addRunning(name string, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[name] += by
}

// waitStopped waits up to timeout until all components have returned. The caller has cancelled their context. If
// components hang, waitStopped logs their names and the stacks of all goroutines, and returns an error.
func (g *componentGroup) waitStopped(timeout time.Duration) error {
	done := make(chan struct{})
	go func() { g.wait.Wait(); close(done) }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
		return nil
	case <-timer.C:
	}
	var names []string
	g.mu.Lock()
	for name, n := range g.running {
		if n > 0 {
			names = append(names, name)
		}
	}
	g.mu.Unlock()
	slices.Sort(names)
	stacks := make([]byte, maxStackBytes)
	g.logger.Error("components of the agent did not stop in time", "components", names, "timeout", timeout, "goroutines", string(stacks[:runtime.Stack(stacks, true)]))
	return fmt.Errorf("%s did not stop within %v", strings.Join(names, ", "), timeout)
}

// maxStackBytes limits the size of the logged stacks.
const maxStackBytes = 64 << 10

// runWithRestarts runs p until ctx ends. It restarts p after a failure if p.restart is true, and otherwise returns the
// error.
func (g *componentGroup) runWithRestarts(ctx context.Context, p component) error {
	budget := componentBudget()
	for {
		err := runRecovering(ctx, p)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%s ended unexpectedly", p.name)
		}
		wait, again := budget.RecordFailure(time.Now())
		if !p.restart || !again {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		g.logger.Error("a component failed; restarting it", "part", p.name, "error", err, "after", wait)
		if !backoff.Sleep(ctx, wait) {
			return nil
		}
	}
}

// runRecovering runs a component and turns a panic into an error, so that Envoy and the other components continue to
// run.
func runRecovering(ctx context.Context, p component) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return p.run(ctx)
}
