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

// diskWriterOf waits for the relay's writer and returns it.
func diskWriterOf(t *testing.T, r *Relay) (k *lastGoodWriter) {
	t.Helper()
	testenv.Eventually(t, "the relay has what it writes with", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if k = r.writer; k == nil {
			return errors.New("not yet")
		}
		return nil
	})
	return k
}

// acceptAll accepts all resources that a control plane sends again.
func (e *fakeEnvoy) acceptAll() {
	e.t.Helper()
	e.accept(clusterType, "")
	e.accept(endpointType, "")
	e.accept(listenerType, "")
}

// TestHungDiskIsReplacedByMemoryUntilItResumes: a write never returns. Envoy receives its configuration immediately,
// and also after its restart without a control plane.
func TestHungDiskIsReplacedByMemoryUntilItResumes(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: 1 << 20, ConnectWait: time.Millisecond, hangTimeout: time.Second}})
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	waitStored(t, relay, time.Time{})

	cp.set(clusterType, "a", "2")
	all["Cluster a"] = "2"
	hangs := make(chan struct{})
	disk := diskWriterOf(t, relay)
	disk.enqueue(func() { <-hangs })
	goOn := func() { close(hangs) }
	defer func() { goOn() }()
	envoy.acceptAll() // requested again for storage in memory
	envoy.expect("while the disk hangs", all)
	testenv.Eventually(t, "it is stored in memory", func() error {
		if k := relay.Status().LastGood.Storage; k.LastCheckpoint.IsZero() || k.Memory == 0 || relay.hangCount() != 1 {
			return errors.New("not yet")
		}
		return nil
	})
	stopControlPlane()
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	envoy.expect("from memory", all)

	goOn()
	goOn = func() {}
	testenv.Eventually(t, "the disk is in force", func() error {
		if disk.active() != disk {
			return errors.New("not yet")
		}
		return nil
	})
	began := time.Now()
	cp.set(clusterType, "b", "3")
	all["Cluster b"] = "3"
	cp.upstream().listen(t, address, nil)
	envoy.acceptAll() // the changes
	envoy.acceptAll() // all resources, for storage
	envoy.expect("after the return of both", all)
	waitStored(t, relay, began)
	if k := relay.Status().LastGood.Storage; k.Memory != 0 || k.Bytes == 0 {
		t.Errorf("%+v", k)
	}
}

// TestHungOpenDoesNotBlockRelay: opening the directory hangs at the start of the agent.
func TestHungOpenDoesNotBlockRelay(t *testing.T) {
	cp := newVersionedControlPlane()
	address, stopControlPlane := cp.upstream().listen(t, "127.0.0.1:0", nil)
	hangs := make(chan struct{})
	relay, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: 1 << 20, ConnectWait: time.Millisecond, hangTimeout: 50 * time.Millisecond, beforeOpen: func() { <-hangs }}})
	goOn := sync.OnceFunc(func() { close(hangs) })
	defer goOn()
	envoy := newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	all := map[string]string{"Cluster a": "1", "Cluster b": "1", "ClusterLoadAssignment a": "1", "ClusterLoadAssignment b": "1", "Listener in": "1"}
	envoy.expect("while the disk cannot be opened", all)
	waitStored(t, relay, time.Time{})
	if k := relay.Status().LastGood.Storage; !k.InMemory || relay.hangCount() != 1 {
		t.Errorf("%d stalls, %+v", relay.hangCount(), k)
	}
	goOn()
	envoy.acceptAll() // for storage on the disk
	waitStored(t, relay, time.Time{})
	testenv.Eventually(t, "it is on the disk", func() error {
		if k := relay.Status().LastGood.Storage; k.File == "" || k.InMemory || k.LastCheckpoint.IsZero() {
			return fmt.Errorf("%+v", k)
		}
		return nil
	})
	stopControlPlane()
	envoy = newFakeEnvoy(t, relay)
	envoy.requestAll("a", "b")
	envoy.expect("from the disk", all)
}

// TestLastGoodIsServedWhenHungDiskResumes: without a control plane, and without another request.
func TestLastGoodIsServedWhenHungDiskResumes(t *testing.T) {
	address, stopControlPlane := newVersionedControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	newFakeEnvoy(t, relay).requestAll("a", "b")
	waitStored(t, relay, time.Time{})
	stop()
	stopControlPlane()

	hangs := make(chan struct{})
	config.LastGood = LastGood{Dirs: config.LastGood.Dirs, MaxMemory: 1 << 20, ConnectWait: time.Millisecond, hangTimeout: 50 * time.Millisecond, beforeOpen: func() { <-hangs }}
	relay, _ = run(t, config)
	diskWriterOf(t, relay)
	envoy := newFakeEnvoy(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	testenv.Eventually(t, "the stored configuration was looked up", func() error {
		relay.mu.Lock()
		s := relay.activeSession
		relay.mu.Unlock()
		if s == nil {
			return errors.New("there is no stream")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.record.isLookedUp {
			return errors.New("not yet")
		}
		return nil
	})
	close(hangs)
	envoy.accept(clusterType, "")
	envoy.expect("as soon as the disk can be opened", map[string]string{"Cluster a": "1", "Cluster b": "1"})
}

// TestRelayEndsWhileOpeningDiskHangs covers storage in memory, and no storage in memory, where there is no spare
// writer.
func TestRelayEndsWhileOpeningDiskHangs(t *testing.T) {
	for _, memory := range []int64{0, 1 << 20} {
		address, _ := newVersionedControlPlane().upstream().listen(t, "127.0.0.1:0", nil)
		hangs, opening := make(chan struct{}), make(chan struct{})
		relay, stop := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
			LastGood: LastGood{Dirs: []string{t.TempDir()}, MaxMemory: memory, hangTimeout: time.Millisecond, beforeOpen: func() { close(opening); <-hangs }}})
		<-opening
		envoy := newFakeEnvoy(t, relay)
		envoy.requestAll("a", "b")
		stop()
		close(hangs)
	}
}
