package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestLongOutageBackoffEndsWhenEnvoyStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var tries []time.Time
		config := Config{Socket: "XDS", Upstreams: []string{"control-plane.test:1"},
			Lookup: func(context.Context, string) ([]netip.Addr, error) {
				mu.Lock()
				defer mu.Unlock()
				tries = append(tries, time.Now())
				return nil, errors.New("away")
			}}
		if err := config.setDefaults(); err != nil {
			t.Fatal(err)
		}
		// during counts the attempts within the duration.
		during := func(d time.Duration) int {
			mu.Lock()
			tries = nil
			mu.Unlock()
			time.Sleep(d)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			return len(tries)
		}
		u := newUplink(config, newStatusTracker(time.Now, slog.New(slog.DiscardHandler)))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { u.run(ctx) })
		defer running.Wait()
		defer cancel()

		if n := during(50 * time.Second); n < 83 {
			t.Errorf("%d attempts in the first 50 s", n)
		}
		during(20 * time.Second)
		if n := during(time.Minute); n < 12 || n > 24 {
			t.Errorf("%d attempts in a minute of a long outage", n)
		}
		u.wakeUp()
		if n := during(10 * time.Second); n < 16 {
			t.Errorf("%d attempts in the 10 s after an Envoy has started", n)
		}
		during(time.Minute)
		if n := during(time.Minute); n > 24 {
			t.Errorf("%d attempts in a minute, when the outage is long again", n)
		}
	})
}

// By default, a gRPC server accepts one ping in 5 minutes, and closes connections with more.
func TestPingsAreReducedForControlPlaneThatRefusesThem(t *testing.T) {
	plane := &upstream{delta: func(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
		for {
			if _, err := s.Recv(); err != nil {
				return err
			}
		}
	}}
	address, _ := plane.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, KeepaliveInterval: 30 * time.Millisecond, KeepaliveTimeout: 10 * time.Second})
	stream := deltaStream(t, relay)
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterURL}); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "fewer pings", func() error {
		if pace := relay.uplink.pingSlowdown.Load(); pace < 4 {
			return fmt.Errorf("pace %d", pace)
		}
		return nil
	})
	if err := stream.Context().Err(); err != nil {
		t.Errorf("Envoy's stream ended: %v", err)
	}
}
