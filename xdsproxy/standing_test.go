package xdsproxy

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// keeperOf waits for what a relay writes with.
func keeperOf(t *testing.T, r *Relay) (k *keeper) {
	t.Helper()
	testenv.Eventually(t, "the relay has what it writes with", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if k = r.keeper; k == nil {
			return errors.New("not yet")
		}
		return nil
	})
	return k
}

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
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: 1 << 20, Wait: time.Millisecond, stands: time.Second}})
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	kept(t, relay, time.Time{})

	cp.set(clusterType, "a", "2")
	all["Cluster a"] = "2"
	hangs := make(chan struct{})
	disk := keeperOf(t, relay)
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

// TestDiskThatDoesNotLetItselfBeOpenedHoldsNothingUp: the agent starts on a disk that stands still.
func TestDiskThatDoesNotLetItselfBeOpenedHoldsNothingUp(t *testing.T) {
	cp := newKeepingControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	hangs := make(chan struct{})
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: 1 << 20, Wait: time.Millisecond, stands: 50 * time.Millisecond, opening: func() { <-hangs }}})
	goOn := sync.OnceFunc(func() { close(hangs) })
	defer goOn()
	envoy := newEnvoyLike(t, relay)
	envoy.start("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	envoy.expect("while the disk cannot be opened", all)
	kept(t, relay, time.Time{})
	if k := relay.Status().LastGood.Kept; !k.InMemory || relay.stalls() != 1 {
		t.Errorf("%d stalls, %+v", relay.stalls(), k)
	}
	goOn()
	envoy.takeAll() // to be kept on the disk
	kept(t, relay, time.Time{})
	testenv.Eventually(t, "it is on the disk", func() error {
		if k := relay.Status().LastGood.Kept; k.File == "" || k.InMemory || k.Marked.IsZero() {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	stopControlPlane()
	envoy = newEnvoyLike(t, relay)
	envoy.start("a", "b")
	envoy.expect("from the disk", all)
}

// TestEnvoyThatFoundADiskStandingGetsWhatIsOnItAsSoonAsItCanBeRead: without a control plane, and without asking again.
func TestEnvoyThatFoundADiskStandingGetsWhatIsOnItAsSoonAsItCanBeRead(t *testing.T) {
	address, stopControlPlane := newKeepingControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	newEnvoyLike(t, relay).start("a", "b")
	kept(t, relay, time.Time{})
	stop()
	stopControlPlane()

	hangs := make(chan struct{})
	config.LastGood = LastGood{Dirs: config.LastGood.Dirs, MaxMemory: 1 << 20, Wait: time.Millisecond, stands: 50 * time.Millisecond, opening: func() { <-hangs }}
	relay, _ = run(t, config)
	keeperOf(t, relay)
	envoy := newEnvoyLike(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	testenv.Eventually(t, "what is kept was looked for", func() error {
		relay.mu.Lock()
		s := relay.current
		relay.mu.Unlock()
		if s == nil {
			return errors.New("there is no stream")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.keeping.offered {
			return errors.New("not yet")
		}
		return nil
	})
	close(hangs)
	envoy.take(clusterType, "")
	envoy.expect("as soon as the disk can be opened", map[string]string{"Cluster a": "1", "Cluster b": "1"})
}

// TestRelayEndsThoughItsDiskWasNeverOpened: without memory, too, in which case there is no spare.
func TestRelayEndsThoughItsDiskWasNeverOpened(t *testing.T) {
	for _, memory := range []int64{0, 1 << 20} {
		address, _ := newKeepingControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
		hangs, opening := make(chan struct{}), make(chan struct{})
		relay, stop := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
			LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: memory, stands: time.Millisecond, opening: func() { close(opening); <-hangs }}})
		<-opening
		envoy := newEnvoyLike(t, relay)
		envoy.start("a", "b")
		stop()
		close(hangs)
	}
}
