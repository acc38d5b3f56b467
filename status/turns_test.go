package status

import (
	"context"
	"testing"
)

func TestOneAddressDoesNotTakeAllTurns(t *testing.T) {
	const greedy, other, third = "192.0.2.1:1000", "192.0.2.2:1000", "[2001:db8::1]:1"
	s := newTurns(3, 2)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	var given []func()
	take := func(who string) {
		t.Helper()
		done, ok := s.take(t.Context(), who)
		if !ok {
			t.Fatalf("%s got no turn", who)
		}
		given = append(given, done)
	}
	take(greedy)
	take(greedy)
	for range 20 { // select takes either branch
		if done, ok := s.take(over, greedy); ok {
			done()
			t.Fatal("one address has three turns of three")
		}
	}
	take(other)
	if done, ok := s.take(over, third); ok {
		done()
		t.Fatal("there were four turns of three")
	}
	for _, done := range given {
		done()
	}
	if len(s.callers) != 0 || len(s.places) != 0 {
		t.Errorf("%d callers and %d turns are left", len(s.callers), len(s.places))
	}
}
