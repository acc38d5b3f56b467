package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// fakeTaintedNode is a fake API server with one node, which has a taint.
type fakeTaintedNode struct {
	mu                    sync.Mutex
	ready, taint, refuses bool
	calls                 int
}

func (n *fakeTaintedNode) RemoveTaints(_ context.Context, node, name string) (bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	if n.refuses || node != "n1" || name != "cni.istio.io/not-ready" {
		return false, fmt.Errorf("%s of %s: 403", name, node)
	}
	removed := n.taint
	n.taint = false
	return removed, nil
}

func (n *fakeTaintedNode) health() health.Condition {
	n.mu.Lock()
	defer n.mu.Unlock()
	return health.Condition{OK: n.ready}
}

func (n *fakeTaintedNode) set(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func TestTaintIsRemovedOnceAgentIsReady(t *testing.T) {
	n, log := &fakeTaintedNode{taint: true, refuses: true}, &testenv.Buffer{}
	u := &untainter{node: "n1", taint: "cni.istio.io/not-ready", api: n, ready: n.health, logger: slog.New(slog.NewTextHandler(log, nil))}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- u.run(ctx) }()
	n.set(func() {
		if n.calls > 0 || !n.taint {
			t.Error("the taint was removed before the agent was ready")
		}
		n.ready = true
	})
	testenv.Eventually(t, "a warning with the remedy", func() error {
		if !strings.Contains(log.String(), "untaint.yaml") || !strings.Contains(log.String(), "kubectl taint nodes n1 cni.istio.io/not-ready-") {
			return errors.New(log.String())
		}
		return nil
	})
	n.set(func() { n.refuses = false })
	testenv.Eventually(t, "the taint goes", func() (err error) {
		n.set(func() {
			if n.taint {
				err = errors.New("it is there")
			}
		})
		return err
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
