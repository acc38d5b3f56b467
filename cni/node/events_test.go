package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/cni/agentapi"
	"github.com/pilotfish-mesh/pilotfish/cni/kube"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// board is a Reporter that records events.
type board struct {
	mu      sync.Mutex
	written []string
	failure error
}

func (b *board) Report(_ context.Context, component, node string, _ time.Time, e kube.PodEvent) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failure == nil {
		b.written = append(b.written, fmt.Sprint(component, " ", node, " ", e.Pod.Metadata.UID, " ", e.Reason))
	}
	return b.failure
}

func (b *board) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failure = err
}

func (b *board) has(t *testing.T, want ...string) {
	t.Helper()
	testenv.Eventually(t, "events", func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if !slices.Equal(b.written, want) {
			return fmt.Errorf("written %v, want %v", b.written, want)
		}
		return nil
	})
}

func TestEventsAreWrittenOnceWithoutBlocking(t *testing.T) {
	b, log := &board{}, &testenv.Buffer{}
	e := NewEvents(EventsConfig{API: b, Node: "n1", Metrics: NewMetrics(nil, nil), Logger: slog.New(slog.NewTextHandler(log, nil))})
	say := func(uid, reason string) {
		e.Enqueue(kube.PodEvent{Pod: &agentapi.Pod{Metadata: agentapi.Metadata{UID: uid}}, Reason: reason})
	}
	for range waitingEvents + 10 { // nothing reads the queue yet
		say("u1", "Drifted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	b.has(t, "pilotfish-cni n1 u1 Drifted")
	say("u2", "Drifted")
	b.has(t, "pilotfish-cni n1 u1 Drifted", "pilotfish-cni n1 u2 Drifted")
	b.fail(errors.New("forbidden"))
	say("u3", "a")
	say("u3", "b")
	testenv.Eventually(t, "a warning", func() error {
		if strings.Count(log.String(), "level=WARN") != 1 {
			return errors.New(log.String())
		}
		return nil
	})
	testenv.Eventually(t, "both are tried", func() error {
		if len(e.queue) > 0 {
			return errors.New("not yet")
		}
		return nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "level=WARN"); n != 1 || !strings.Contains(log.String(), "pod-events") {
		t.Errorf("warned %d times: %s", n, log)
	}
}
