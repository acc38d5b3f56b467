package sts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// newTestCache returns a cache that is closed at the end of the test.
func newTestCache(t *testing.T, clock *clock, from *exchanger) *cache {
	life, stop := context.WithCancel(context.Background())
	c := newCache(life, clock.Now, from.Exchange)
	t.Cleanup(func() { stop(); c.inflight.Wait() })
	return c
}

func (c *cache) mustGet(t *testing.T, want string) {
	t.Helper()
	token, err := c.get(t.Context(), Request{Subject: "s"})
	if err != nil || string(token.Access) != want {
		t.Fatalf("got %q, %v; want %q", string(token.Access), err, want)
	}
}

// settled waits until no exchange is in progress.
func (c *cache) settled(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, "no exchange is in progress", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, e := range c.entries {
			if e.inflight != nil {
				return errors.New("one is")
			}
		}
		return nil
	})
}

func TestTokenIsCachedAndRenewed(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	c := newTestCache(t, clock, from)
	c.mustGet(t, "access-1")
	clock.pass(time.Hour - refreshAhead - time.Second)
	c.mustGet(t, "access-1")
	if from.count() != 1 {
		t.Fatalf("%d exchanges while it was fresh", from.count())
	}
	clock.pass(2 * time.Second)
	c.mustGet(t, "access-1") // must not wait for the exchange
	c.settled(t)
	c.mustGet(t, "access-2")
}

func TestClientsWaitForNewTokenBeforeExpiry(t *testing.T) {
	clock := newClock()
	c := newTestCache(t, clock, returning(clock, time.Hour))
	c.mustGet(t, "access-1")
	clock.pass(time.Hour - urgent + time.Second)
	c.mustGet(t, "access-2")
}

func TestCachedTokenIsReturnedWhileServerIsUnavailable(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	gives, away := from.do, false
	from.do = func(ctx context.Context, n int, r Request) (Token, error) {
		if away {
			return Token{}, errors.New("away")
		}
		return gives(ctx, n, r)
	}
	c := newTestCache(t, clock, from)
	c.mustGet(t, "access-1")
	away = true
	clock.pass(time.Hour - refreshAhead)
	for range int(refreshAhead / time.Second) { // one request per second until the token expires
		c.mustGet(t, "access-1")
		c.settled(t)
		clock.pass(time.Second)
	}
	if n := from.count(); n < 5 || n > 20 {
		t.Errorf("%d attempts in five minutes; want a few, with increasing intervals", n)
	}
	clock.pass(maxPause)
	if token, err := c.get(t.Context(), Request{Subject: "s"}); err == nil {
		t.Errorf("an expired token was returned: %q", string(token.Access))
	}
	away = false
	clock.pass(failurePause)
	c.mustGet(t, fmt.Sprintf("access-%d", from.count()+1))
}

func TestShortLivedTokensAreCached(t *testing.T) {
	clock := newClock()
	from := returning(clock, 100*time.Second)
	c := newTestCache(t, clock, from)
	for range 40 {
		c.mustGet(t, "access-1")
		clock.pass(time.Second)
	}
	if from.count() != 1 {
		t.Errorf("%d exchanges in 40 s, for a token of 100 s", from.count())
	}
}

func TestTokenWithoutExpiryIsNotCached(t *testing.T) {
	from := &exchanger{do: func(_ context.Context, n int, _ Request) (Token, error) {
		return Token{Access: Secret(fmt.Sprintf("access-%d", n))}, nil
	}}
	c := newTestCache(t, newClock(), from)
	c.mustGet(t, "access-1")
	c.mustGet(t, "access-2")
}

func TestExpiredTokenIsNotReturned(t *testing.T) {
	clock := newClock()
	c := newTestCache(t, clock, returning(clock, 0))
	if _, err := c.get(t.Context(), Request{}); err == nil || !strings.Contains(err.Error(), "expired token") {
		t.Errorf("got %v", err)
	}
}

func TestSingleFlight(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	gives, gate := from.do, make(chan struct{})
	from.do = func(ctx context.Context, n int, r Request) (Token, error) {
		<-gate
		return gives(ctx, n, r)
	}
	c := newTestCache(t, clock, from)
	var clients sync.WaitGroup
	for range 200 {
		clients.Go(func() {
			if _, err := c.get(context.Background(), Request{Subject: "s"}); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, "the exchange begins", func() error {
		if from.count() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	leaving, leave := context.WithCancel(context.Background())
	leave()
	if _, err := c.get(leaving, Request{Subject: "s"}); !errors.Is(err, context.Canceled) {
		t.Errorf("the client that stopped waiting got %v", err)
	}
	close(gate)
	clients.Wait()
	if from.count() != 1 {
		t.Errorf("%d exchanges for 200 clients", from.count())
	}
}

func TestExchangeLimit(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	gives := from.do
	var mu sync.Mutex
	now, most := 0, 0
	from.do = func(ctx context.Context, n int, r Request) (Token, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		time.Sleep(time.Millisecond) // let exchanges overlap
		mu.Lock()
		now--
		mu.Unlock()
		return gives(ctx, n, r)
	}
	c := newTestCache(t, clock, from)
	var clients sync.WaitGroup
	for i := range 200 {
		clients.Go(func() {
			if _, err := c.get(context.Background(), Request{Subject: Secret(fmt.Sprint(i))}); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	if most > maxExchanges {
		t.Errorf("%d concurrent exchanges", most)
	}
}

func TestFailureIsNotRetriedAtOnce(t *testing.T) {
	clock := newClock()
	from := &exchanger{do: func(context.Context, int, Request) (Token, error) { return Token{}, errors.New("away") }}
	c := newTestCache(t, clock, from)
	for range 100 {
		if _, err := c.get(t.Context(), Request{}); err == nil || err.Error() != "away" {
			t.Fatalf("got %v", err)
		}
		clock.pass(100 * time.Millisecond)
	}
	if n := from.count(); n < 9 || n > 11 {
		t.Errorf("%d exchanges in 10 s", n)
	}
}

func TestCacheLimit(t *testing.T) {
	clock := newClock()
	large := strings.Repeat("x", 30<<10)
	from := &exchanger{do: func(_ context.Context, n int, r Request) (Token, error) {
		if strings.HasPrefix(string(r.Subject), "bad") {
			return Token{}, errors.New("no")
		}
		return Token{Access: Secret(large), Expires: clock.Now().Add(time.Hour)}, nil
	}}
	c := newTestCache(t, clock, from)
	for i := range 4 * maxEntries {
		_, _ = c.get(t.Context(), Request{Subject: Secret(fmt.Sprint([]string{"good", "bad"}[i%2], i))})
		clock.pass(time.Millisecond)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	held := 0
	for _, e := range c.entries {
		held += e.token.size()
	}
	if len(c.entries) > maxEntries || c.bytes > maxBytes || c.bytes != held {
		t.Errorf("%d entries of %d bytes, counted as %d", len(c.entries), held, c.bytes)
	}
}

func TestEveryParameterIsPartOfTheKey(t *testing.T) {
	seen := map[key]int{}
	for i, r := range []Request{
		{}, {Subject: "a"}, {SubjectType: "a"}, {Actor: "a"}, {ActorType: "a"}, {Scope: "a"}, {RequestedType: "a"},
		{Resources: []string{"a"}}, {Audiences: []string{"a"}}, {Resources: []string{"a", "b"}}, {Resources: []string{"ab"}},
		{Resources: []string{"a"}, Audiences: []string{"b"}}, {Subject: "a", SubjectType: "b"}, {Subject: "ab"}, {Subject: "a", owner: "x"}, {owner: "y"},
	} {
		if other, ok := seen[r.key()]; ok {
			t.Errorf("requests %d and %d have the same key", i, other)
		}
		seen[r.key()] = i
	}
}

func TestRemainingWithBothClocks(t *testing.T) {
	now := time.Now()
	if got := remaining(now.Add(time.Minute), now); got != time.Minute {
		t.Errorf("with both: %s", got)
	}
	if got := remaining(now.Add(time.Minute).Round(0), now.Add(2*time.Minute)); got != -time.Minute {
		t.Errorf("with the wall clock alone: %s", got)
	}
}
