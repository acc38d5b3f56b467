package xdsproxy

import (
	"errors"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// takeAll takes what a control plane sends when it is asked for everything anew.
func (e *envoyLike) takeAll() {
	e.t.Helper()
	e.take(clusterType, "")
	e.take(endpointType, "")
	e.take(listenerType, "")
}

// TestDiskThatComesToAStandGivesWayToMemoryUntilItGoesOn: what is to be written never ends, and Envoy gets its
// configuration all the same, at once, and after its restart without a control plane.
func TestDiskThatComesToAStandGivesWayToMemoryUntilItGoesOn(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: 1 << 20, Wait: time.Millisecond, stands: 100 * time.Millisecond}})
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	kept(t, relay, time.Time{})

	cp.set(clusterType, "a", "2")
	all["Cluster a"] = "2"
	hangs := make(chan struct{})
	disk := relay.keeper
	disk.put(func() { <-hangs })
	goOn := func() { close(hangs) }
	defer func() { goOn() }()
	envoy.takeAll() // which is asked for to be kept in memory
	envoy.expect("while the disk stands still", all)
	testenv.Eventually(t, "it is kept in memory", func() error {
		if k := relay.Status().LastGood.Kept; k.Marked.IsZero() || k.Memory == 0 || relay.stalls() != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	stopControlPlane()
	envoy = newEnvoyLike(t, relay)
	envoy.start("a", "b")
	envoy.expect("from memory", all)

	goOn()
	goOn = func() {}
	testenv.Eventually(t, "the disk is in force", func() error {
		if disk.inForce() != disk {
			return errors.New("not yet")
		}
		return nil
	})
	began := time.Now()
	cp.set(clusterType, "b", "3")
	all["Cluster b"] = "3"
	cp.upstream().listen(t, address, nil)
	envoy.takeAll() // what differs
	envoy.takeAll() // what is to be kept
	envoy.expect("after the return of both", all)
	kept(t, relay, began)
	if k := relay.Status().LastGood.Kept; k.Memory != 0 || k.Bytes == 0 {
		t.Errorf("%+v", k)
	}
}
