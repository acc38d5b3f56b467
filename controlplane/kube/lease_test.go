package kube

import (
	"log/slog"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
)

func newFakeLeases(t *testing.T) rest.Interface {
	t.Helper()
	_, client := newFakeObjects(t)
	return client(coordinationv1.SchemeGroupVersion)
}

func newFakeElection(client rest.Interface) *election {
	return newElection(client, IdentityConfig{Namespace: "istio-system", Logger: slog.New(slog.DiscardHandler)})
}

// A replica that lost its connection does not release the Lease. Another replica takes over after leaseDuration by its
// own clock, even if the clock of the first one is wrong.
func TestLeaseOfAKilledReplicaExpires(t *testing.T) {
	client := newFakeLeases(t)
	killed, other := newFakeElection(client), newFakeElection(client)
	wrong, clock := newFakeClock(), newFakeClock()
	wrong.advance(24 * 365 * leaseDuration)
	killed.now, other.now = wrong.time, clock.time
	try := func(r *election, want bool) {
		t.Helper()
		if err := r.try(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r.IsLeader() != want {
			t.Errorf("the replica leads: %v, want %v", r.IsLeader(), want)
		}
	}
	try(killed, true)
	try(other, false)
	clock.advance(leaseDuration - renewInterval)
	try(other, false)
	try(killed, true) // renews the Lease
	clock.advance(renewInterval)
	try(other, false)
	wrong.advance(renewDeadline)
	if killed.IsLeader() {
		t.Error("a replica leads although it does not renew its Lease")
	}
	clock.advance(leaseDuration)
	try(other, true)
	try(killed, false)
}

func TestOneOfManyReplicasLeads(t *testing.T) {
	client := newFakeLeases(t)
	const count = 5
	leaders := make(chan int, count)
	for n := range count {
		r := newFakeElection(client)
		go func() {
			if err := r.try(t.Context()); err != nil {
				t.Error(err)
			}
			if !r.IsLeader() {
				n = -1
			}
			leaders <- n
		}()
	}
	leading := 0
	for range count {
		if <-leaders >= 0 {
			leading++
		}
	}
	if leading != 1 {
		t.Errorf("%d replicas lead, want 1", leading)
	}
}
