package kube

import (
	"context"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testcluster"
)

// replica is a control plane that takes part in an election. led receives the state after each change.
type replica struct {
	*election
	led  chan bool
	stop context.CancelFunc
	done chan struct{}
}

func newReplica(e *election) *replica {
	r := &replica{election: e, led: make(chan bool, 16), done: make(chan struct{})}
	r.changed = func() { r.led <- r.IsLeader() }
	return r
}

func (r *replica) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = func() { cancel(); <-r.done }
	go func() { defer close(r.done); r.election.Run(ctx) }()
	t.Cleanup(r.stop)
}

func TestLeaderIsReplacedWhenItStops(t *testing.T) {
	cluster := testcluster.Shared(t)
	namespace := cluster.Namespace(t)
	one, two := newReplica(newIdentity(t, cluster, namespace).election), newReplica(newIdentity(t, cluster, namespace).election)
	one.start(t)
	if !<-one.led {
		t.Fatal("a single replica does not lead")
	}
	two.start(t)
	one.stop()
	if <-one.led {
		t.Error("a replica leads after it has stopped")
	}
	if !<-two.led {
		t.Fatal("the second replica does not lead")
	}
	lease := cluster.Get(t, "/apis/coordination.k8s.io/v1/namespaces/"+namespace+"/leases/"+leaseName)
	if holder := lease.Text("spec", "holderIdentity"); holder != two.identity {
		t.Errorf("the Lease's holder is %q, want %q", holder, two.identity)
	}
}
