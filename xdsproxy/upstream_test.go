package xdsproxy

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
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
		u := newUpstream(config, newStatusTracker(time.Now, slog.New(slog.DiscardHandler)))
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
			t.Errorf("%d attempts in a minute, after a second long outage", n)
		}
	})
}

// By default, a gRPC server closes a connection with more than one ping in 5 minutes.
func TestPingsAreReducedForControlPlaneThatRefusesThem(t *testing.T) {
	u := newUpstream(Config{KeepaliveInterval: 30 * time.Second}, newStatusTracker(time.Now, slog.New(slog.DiscardHandler)))
	refusal := errors.New(`received prior goaway: code: ENHANCE_YOUR_CALM, debug data: "too_many_pings"`)
	for _, want := range []time.Duration{time.Minute, 2 * time.Minute, 4 * time.Minute} {
		u.onStreamEnd(errors.New("the control plane ended the stream"))
		u.onStreamEnd(refusal)
		if got := u.interval(); got != want {
			t.Errorf("interval %v, want %v", got, want)
		}
	}
	for range 10 {
		u.onStreamEnd(refusal)
	}
	if got := u.interval(); got != maxPingSlowdown*30*time.Second {
		t.Errorf("maximum interval %v", got)
	}
}
