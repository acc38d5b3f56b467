package xdsproxy

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
)

const chunkedSize = 4 << 20

// startRecordedEnvoy starts a control plane, a relay and an Envoy, and waits until a cluster and a listener are stored.
func startRecordedEnvoy(t *testing.T, config Config) (l *manualControlPlane, s *manualStream, r *Relay, stop func(), envoy *fakeEnvoy) {
	t.Helper()
	l = newManualControlPlane(t, "127.0.0.1:0")
	config.Upstreams, config.Server = []string{l.address}, Server{Plaintext: true}
	r, stop = run(t, config)
	diskWriterOf(t, r)
	envoy = newFakeEnvoy(t, r)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	s = l.acceptStream()
	s.receive(delta, clusterType)
	s.send(newResource(t, clusterType, "n1", "a", "1"))
	envoy.accept(clusterType, "")
	s.receive(delta, clusterType)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	s.receive(delta, listenerType)
	s.send(newResource(t, listenerType, "n2", "in", "1"))
	envoy.accept(listenerType, "")
	s.receive(delta, listenerType)
	waitStored(t, r, time.Time{})
	return l, s, r, stop, envoy
}

// expectStoredAfterRestart checks what an Envoy receives that starts without a control plane.
func expectStoredAfterRestart(t *testing.T, config Config, want map[string]string) {
	t.Helper()
	config.Upstreams, config.Server = []string{freeAddress(t)}, Server{Plaintext: true}
	relay, stop := run(t, config)
	defer stop()
	envoy := newFakeEnvoy(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	envoy.accept(clusterType, "")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	envoy.accept(listenerType, "")
	envoy.expect("without a control plane", want)
}

func TestRejectedChunkedResponseIsNotStored(t *testing.T) {
	config := Config{LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	_, s, r, stop, envoy := startRecordedEnvoy(t, config)
	s.send(newLargeResponse(t, clusterType, clusterType, chunkedSize))
	envoy.accept(clusterType, "no")
	if got := s.receive(delta, clusterType); !got.rejected {
		t.Errorf("the control plane received %+v", got)
	}
	before := time.Now()
	s.send(newResource(t, listenerType, "n3", "in", "2"))
	envoy.accept(listenerType, "")
	waitStored(t, r, before)
	stop()
	expectStoredAfterRestart(t, config, map[string]string{"Cluster a": "1", "Listener in": "2"})
}

func TestCutOffChunkedResponseIsNotStored(t *testing.T) {
	config := Config{LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	l, s, r, stop, envoy := startRecordedEnvoy(t, config)
	response := newLargeResponse(t, clusterType, clusterType, chunkedSize)
	s.sendPartially(response, len(response)*3/4)
	s.abort()
	if got, err := envoy.stream.Recv(); err == nil {
		t.Fatalf("Envoy received a response with %d resources", len(got.Resources))
	}
	l.stop()
	if !r.isChunkBroken.Load() {
		t.Error("it did not go on in parts")
	}
	stop()
	expectStoredAfterRestart(t, config, map[string]string{"Cluster a": "1", "Listener in": "1"})
}

// If the disk hangs during a large response, no chunk of it stays in memory.
func TestChunksAreFreedWhenRecordingStops(t *testing.T) {
	const typeURL, part = clusterType, writeBatchSize / 2
	s := &session{proto: delta, writer: newLastGoodWriter(slog.New(slog.DiscardHandler)), state: newStreamState(delta)}
	s.state.ensureType(typeURL)
	s.record.isIdentified, s.record.isWriting = true, true
	for range maxWriteQueue {
		s.writer.queue <- func() {} // the queue is full, and no goroutine writes
	}
	k := s.beginChunked(typeURL)
	var lives atomic.Int32
	add := func() {
		lives.Add(1)
		content := make([]byte, part)
		piece := mem.NewBuffer(&content, freeCallback(func() { lives.Add(-1) }))
		f := &frame{data: mem.BufferSlice{piece}}
		k.add(response{typeURL: typeURL}, f)
		f.free()
	}
	for range 6 {
		add()
	}
	if got := lives.Load(); got != 6 {
		t.Fatalf("%d chunks are buffered, want 6", got)
	}
	s.record.hasFailed = true
	for range 6 {
		add()
	}
	if got := lives.Load(); got != 0 {
		t.Errorf("%d chunks are still in memory", got)
	}
	if stage := k.finish(response{typeURL: typeURL}); stage != 0 {
		t.Errorf("it is recorded as stage %d", stage)
	}
}

// freeCallback is a buffer pool that is called when a buffer is freed.
type freeCallback func()

func (freeCallback) Get(int) *[]byte { return nil }

func (p freeCallback) Put(*[]byte) { p() }
