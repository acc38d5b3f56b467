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

	"github.com/pilotfish-mesh/pilotfish/internal/health"
)

// part is one thing that the agent keeps running.
type part struct {
	name string
	run  func(context.Context) error
	// restart starts the part again, with a back-off, when it fails; otherwise its failure ends the agent.
	restart bool
	// health is asked by readiness probes; nil for a part that a proxy can be ready without.
	health health.Check
}

// group runs parts until its context ends.
type group struct {
	logger *slog.Logger
	wait   sync.WaitGroup
	failed chan error // gets the first failure of a part that is not restarted

	mu      sync.Mutex
	running map[string]int // parts by name
}

func newGroup(logger *slog.Logger) *group {
	return &group{logger: logger, failed: make(chan error, 1), running: map[string]int{}}
}

// start runs the part beside the others.
func (g *group) start(ctx context.Context, p part) {
	g.run(p.name, func() {
		if err := g.keep(ctx, p); err != nil {
			select {
			case g.failed <- err:
			default: // another part failed first, and that ends the agent already
			}
		}
	})
}

// run does something beside the parts, which counts as one.
func (g *group) run(name string, do func()) {
	g.count(name, 1)
	g.wait.Go(func() {
		defer g.count(name, -1)
		do()
	})
}

func (g *group) count(name string, by int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running[name] += by
}

// end waits for the parts, whose context has ended, but not for ever: whoever ended the agent waits for it. Parts that hang
// are told with the stacks of all goroutines, and left to the end of the process.
func (g *group) end(patience time.Duration) error {
	done := make(chan struct{})
	go func() { g.wait.Wait(); close(done) }()
	timer := time.NewTimer(patience)
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
	stacks := make([]byte, mostStacks)
	g.logger.Error("parts of the agent do not end and are left", "parts", names, "after", patience, "goroutines", string(stacks[:runtime.Stack(stacks, true)]))
	return fmt.Errorf("%s did not end within %v of being told to", strings.Join(names, ", "), patience)
}

// mostStacks bounds what is told of an end that hangs, in bytes.
const mostStacks = 64 << 10

// keep runs the part, again and again if that is its rule.
func (g *group) keep(ctx context.Context, p part) error {
	allowed := partBudget()
	for {
		err := safely(ctx, p)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%s ended without being asked to", p.name)
		}
		wait, again := allowed.fail(time.Now())
		if !p.restart || !again {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		g.logger.Error("a part failed and is started again", "part", p.name, "error", err, "after", wait)
		if !sleep(ctx, wait) {
			return nil
		}
	}
}

// safely turns a panic into an error, so that a fault in one part leaves Envoy and the other parts running.
func safely(ctx context.Context, p part) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	return p.run(ctx)
}

// sleep waits, and says whether the time passed before the context ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
