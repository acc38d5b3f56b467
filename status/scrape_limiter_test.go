package status

import (
	"context"
	"testing"
	"time"
)

func TestOneAddressDoesNotTakeAllTurns(t *testing.T) {
	const greedy, other, third = "192.0.2.1:1000", "192.0.2.2:1000", "[2001:db8::1]:1"
	s := newScrapeLimiter(3, 2, time.Hour)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var given []func()
	take := func(who string) {
		t.Helper()
		done, ok := s.acquire(t.Context(), who, func() {})
		if !ok {
			t.Fatalf("%s got no slot", who)
		}
		given = append(given, done)
	}
	take(greedy)
	take(greedy)
	for range 20 { // select chooses a branch at random
		if done, ok := s.acquire(over, greedy, nil); ok {
			done()
			t.Fatal("one address has all three slots")
		}
	}
	take(other)
	if done, ok := s.acquire(over, third, nil); ok {
		done()
		t.Fatal("four scrapes ran with three slots")
	}
	for _, done := range given {
		done()
	}
	if len(s.callers) != 0 || len(s.slots) != 0 {
		t.Errorf("%d clients and %d slots are left", len(s.callers), len(s.slots))
	}
}

func TestOldestScrapeIsCancelledForAnotherAddress(t *testing.T) {
	s := newScrapeLimiter(3, 2, time.Minute)
	given := make(chan int, 10)
	var all []func()
	for i, who := range []string{"192.0.2.1:1000", "192.0.2.2:1000", "192.0.2.1:1001"} {
		ended := make(chan struct{})
		done, ok := s.acquire(t.Context(), who, func() { given <- i; close(ended) })
		if !ok {
			t.Fatalf("%s got no slot", who)
		}
		go func() { <-ended; done() }()
		all = append(all, func() { close(ended) })
	}
	for _, turn := range s.running {
		turn.since = turn.since.Add(-time.Hour) // each scrape is older than maxHold
	}
	for want := range 3 {
		done, ok := s.acquire(t.Context(), "192.0.2.3:1", func() { t.Error("the third address's scrape was cancelled, although no client waited") })
		if !ok {
			t.Fatal("the third address got no slot")
		}
		if want == 0 {
			if first := <-given; first != 0 {
				t.Errorf("scrape %d was cancelled, not the oldest", first)
			}
		}
		done()
	}
	if len(given) != 0 {
		t.Errorf("%d more scrapes were cancelled than necessary", len(given))
	}
	all[1]()
	all[2]()
}
