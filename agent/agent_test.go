package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEndedAgentLeavesNoGoroutine(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	s := newSetup(t, "127.88.20.1")
	stop := s.cp.start(t)
	t.Chdir(s.dir)
	c := resolve(t, config.Inputs{Env: append(s.env, "ENVOY_PATH="+testenv.Envoy(t))})
	a, err := New(Options{Config: c, Logger: slog.New(slog.DiscardHandler), Started: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	eventually(t, "Envoy is ready", func() error {
		if ok, reason := a.envoy.Health(); !ok {
			return errors.New(reason)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Errorf("a clean stop is an error: %v", err)
	}
	stop()
	goleak.VerifyNone(t, ignore)
}

func TestCrashBudgetToleratesRareFailuresOnly(t *testing.T) {
	now := time.Unix(0, 0)
	series := envoyBudget()
	for n := 1; ; n++ {
		wait, again := series.RecordFailure(now)
		if !again {
			if n != 6 {
				t.Errorf("given up at failure %d of a series, want 6", n)
			}
			break
		}
		if want := 100 * time.Millisecond << (n - 1); wait < want*9/10 || wait > want {
			t.Errorf("wait %v after failure %d, want about %v", wait, n, want)
		}
		now = now.Add(wait)
	}
	rare := envoyBudget()
	for n := range 1000 {
		if _, again := rare.RecordFailure(now); !again {
			t.Fatalf("given up at failure %d although they were 10 minutes apart", n+1)
		}
		now = now.Add(10 * time.Minute)
	}
	part := componentBudget()
	for range 10000 {
		wait, again := part.RecordFailure(now)
		if !again || wait > 15*time.Second {
			t.Fatalf("a component is not restarted, or is delayed by %v", wait)
		}
	}
}

func TestClockJumpDoesNotUseCrashBudget(t *testing.T) {
	now, b := time.Unix(1e9, 0), envoyBudget()
	for _, jump := range []time.Duration{0, -time.Hour, -10 * 365 * 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		now = now.Add(jump)
		if wait, again := b.RecordFailure(now); !again || wait > time.Second {
			t.Fatalf("after a jump of %v: wait %v, again %v", jump, wait, again)
		}
	}
}

func TestPanickingComponentIsRestarted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g, starts := newComponentGroup(slog.New(slog.DiscardHandler)), 0
	g.start(ctx, component{name: "p", restart: true, run: func(ctx context.Context) error {
		switch starts++; starts {
		case 1:
			panic("first")
		case 2:
			return nil
		}
		cancel()
		<-ctx.Done()
		return nil
	}})
	g.wait.Wait()
	if starts != 3 {
		t.Errorf("%d starts, want 3", starts)
	}
}

func TestHungComponentIsReported(t *testing.T) {
	let := make(chan struct{})
	var log strings.Builder
	g := newComponentGroup(slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	g.start(ctx, component{name: "obedient", run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
	g.start(ctx, component{name: "deaf", run: func(context.Context) error { <-let; return nil }})
	cancel()
	// On a busy machine, the cooperative component may not have been scheduled yet.
	if err := g.waitStopped(100 * time.Millisecond); err == nil || !strings.HasPrefix(err.Error(), "deaf") {
		t.Errorf("the exit is reported as %v", err)
	}
	if !strings.Contains(log.String(), "TestHungComponentIsReported") {
		t.Errorf("the log does not contain the stack of the hung component: %s", log.String())
	}
	close(let)
	if err := g.waitStopped(testTimeout); err != nil {
		t.Errorf("error although all components stopped: %v", err)
	}
}

func TestFailedComponentStopsAgent(t *testing.T) {
	g := newComponentGroup(slog.New(slog.DiscardHandler))
	g.start(t.Context(), component{name: "p", run: func(context.Context) error { return errors.New("broken") }})
	g.wait.Wait()
	if err := <-g.failed; err == nil || err.Error() != "p: broken" {
		t.Errorf("failure: %v", err)
	}
}
