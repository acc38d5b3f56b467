package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestEndedAgentLeavesNoGoroutine(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	s := newSetup(t, "127.88.20.1")
	stop := s.cp.start(t)
	t.Chdir(s.dir)
	c := resolve(t, Inputs{Env: append(s.env, "ENVOY_PATH="+testenv.Envoy(t))})
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
		t.Errorf("a clean end is an error: %v", err)
	}
	stop()
	goleak.VerifyNone(t, ignore)
}

func TestBudgetForgivesRareFailuresAndNotSeries(t *testing.T) {
	now := time.Unix(0, 0)
	series := envoyBudget()
	for n := 1; ; n++ {
		wait, again := series.fail(now)
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
		if _, again := rare.fail(now); !again {
			t.Fatalf("given up at failure %d although they were 10 minutes apart", n+1)
		}
		now = now.Add(10 * time.Minute)
	}
	part := partBudget()
	for range 10000 {
		wait, again := part.fail(now)
		if !again || wait > 15*time.Second {
			t.Fatalf("a part is given up, or waits %v", wait)
		}
	}
}

func TestClockThatJumpsDoesNotSpendTheBudget(t *testing.T) {
	now, b := time.Unix(1e9, 0), envoyBudget()
	for _, jump := range []time.Duration{0, -time.Hour, -10 * 365 * 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		now = now.Add(jump)
		if wait, again := b.fail(now); !again || wait > time.Second {
			t.Fatalf("after a jump of %v: wait %v, again %v", jump, wait, again)
		}
	}
}

func TestPartThatPanicsOrEndsIsStartedAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g, starts := newGroup(slog.New(slog.DiscardHandler)), 0
	g.start(ctx, part{name: "p", restart: true, run: func(ctx context.Context) error {
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

func TestPartThatDoesNotEndIsLeftAndNamed(t *testing.T) {
	let := make(chan struct{})
	var log strings.Builder
	g := newGroup(slog.New(slog.NewTextHandler(&log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	g.start(ctx, part{name: "obedient", run: func(ctx context.Context) error { <-ctx.Done(); return nil }})
	g.start(ctx, part{name: "deaf", run: func(context.Context) error { <-let; return nil }})
	cancel()
	// The obedient one may not have been scheduled yet, on a busy machine.
	if err := g.end(100 * time.Millisecond); err == nil || !strings.HasPrefix(err.Error(), "deaf") {
		t.Errorf("the end is told as %v", err)
	}
	if !strings.Contains(log.String(), "TestPartThatDoesNotEndIsLeftAndNamed") {
		t.Errorf("the log does not tell where it hangs: %s", log.String())
	}
	close(let)
	if err := g.end(patience); err != nil {
		t.Errorf("an end that all parts came to is told as %v", err)
	}
}

func TestPartWithoutARestartRuleEndsTheAgent(t *testing.T) {
	g := newGroup(slog.New(slog.DiscardHandler))
	g.start(t.Context(), part{name: "p", run: func(context.Context) error { return errors.New("broken") }})
	g.wait.Wait()
	if err := <-g.failed; err == nil || err.Error() != "p: broken" {
		t.Errorf("failure: %v", err)
	}
}
