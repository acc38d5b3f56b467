package controlplane

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
	"github.com/pilotfish-mesh/pilotfish/controlplane/jwks"
	"github.com/pilotfish-mesh/pilotfish/controlplane/xds"
)

// TestFirstChangeIsPushedAtOnceAndBurstsAreMerged uses simulated time.
func TestFirstChangeIsPushedAtOnceAndBurstsAreMerged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := xds.NewServer(xds.Config{Source: proxySource{log: slog.New(slog.DiscardHandler)}})
		if err != nil {
			t.Fatal(err)
		}
		f := &pushLoop{
			store: config.NewMemoryStore(), mesh: func() *meshconfig.MeshConfig { return nil }, server: server,
			debounce: Debounce{After: 10 * time.Millisecond, Max: 50 * time.Millisecond},
			metrics:  newMetrics(prometheus.NewRegistry()), log: slog.New(slog.DiscardHandler),
			keys: jwks.New(jwks.Config{Changed: func() {}}), analysis: &analysisLoop{wake: make(chan struct{}, 1)}, changes: &changeLog{}, roots: func() []byte { return nil },
			wake: make(chan struct{}, 1), changed: map[config.Key]struct{}{},
		}
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); f.run(ctx) }()
		edit := func() { f.note([]config.Key{{Kind: config.Service, Namespace: "a", Name: "b"}}); synctest.Wait() }
		time.Sleep(time.Second)

		before := f.snapshot()
		edit()
		if f.snapshot() == before {
			t.Error("the first change after a pause is delayed")
		}
		before = f.snapshot()
		for range 6 { // 30 ms
			edit()
			time.Sleep(5 * time.Millisecond)
		}
		if f.snapshot() != before {
			t.Error("consecutive changes are not merged")
		}
		time.Sleep(11 * time.Millisecond)
		synctest.Wait()
		if f.snapshot() == before {
			t.Error("the merged changes are not pushed when the changes pause")
		}
		before = f.snapshot()
		for range 12 { // 60 ms
			edit()
			time.Sleep(5 * time.Millisecond)
		}
		if f.snapshot() == before {
			t.Error("changes without a pause are delayed for longer than Debounce.Max")
		}
		stop()
		<-ended
	})
}
