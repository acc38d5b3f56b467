package xdsproxy

import (
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
)

const flowing = 4 << 20

// begun has an Envoy get a cluster and a listener from a control plane that is led, and have them be kept.
func begun(t *testing.T, config Config) (l *led, s *ledStream, r *Relay, stop func(), envoy *envoyLike) {
	t.Helper()
	l = newLed(t, "127.0.0.1:0")
	config.Upstreams, config.Server = []string{l.address}, Server{Plaintext: true}
	r, stop = run(t, config)
	keeperOf(t, r)
	envoy = newEnvoyLike(t, r)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	s = l.stream()
	s.hears(delta, clusterType)
	s.says(one(t, clusterType, "n1", "a", "1"))
	envoy.take(clusterType, "")
	s.hears(delta, clusterType)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	s.hears(delta, listenerType)
	s.says(one(t, listenerType, "n2", "in", "1"))
	envoy.take(listenerType, "")
	s.hears(delta, listenerType)
	kept(t, r, time.Time{})
	return l, s, r, stop, envoy
}

// afterwards is what an Envoy gets that starts without any control plane.
func afterwards(t *testing.T, config Config, want map[string]string) {
	t.Helper()
	config.Upstreams, config.Server = []string{freeAddress(t)}, Server{Plaintext: true}
	relay, stop := run(t, config)
	defer stop()
	envoy := newEnvoyLike(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType})
	envoy.take(clusterType, "")
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	envoy.take(listenerType, "")
	envoy.expect("without a control plane", want)
}

func TestLargeResponseThatEnvoyRejectsDoesNotCount(t *testing.T) {
	config := Config{LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	_, s, r, stop, envoy := begun(t, config)
	s.says(large(t, clusterType, clusterType, flowing))
	envoy.take(clusterType, "no")
	if got := s.hears(delta, clusterType); !got.rejected {
		t.Errorf("the control plane hears %+v", got)
	}
	before := time.Now()
	s.says(one(t, listenerType, "n3", "in", "2"))
	envoy.take(listenerType, "")
	kept(t, r, before)
	stop()
	afterwards(t, config, map[string]string{"Cluster a": "1", "Listener in": "2"})
}

func TestLargeResponseThatIsNotCompletedDoesNotCount(t *testing.T) {
	config := Config{LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	l, s, r, stop, envoy := begun(t, config)
	response := large(t, clusterType, clusterType, flowing)
	s.begins(response, len(response)*3/4)
	s.dies()
	if got, err := envoy.stream.Recv(); err == nil {
		t.Fatalf("Envoy got a response of %d resources", len(got.Resources))
	}
	l.stop()
	if !r.broken.Load() {
		t.Error("it did not go on in parts")
	}
	stop()
	afterwards(t, config, map[string]string{"Cluster a": "1", "Listener in": "1"})
}

// Nothing of a large response is held for a disk that was given up while it passes.
func TestLargeResponseIsNotHeldOnceItIsNotKept(t *testing.T) {
	const typeURL, part = clusterType, keepBatch / 2
	s := &session{proto: delta, keeper: newKeeper(slog.New(slog.DiscardHandler)), state: newStreamState(delta)}
	s.state.of(typeURL)
	s.keeping.known, s.keeping.begun = true, true
	for range maxKeeping {
		s.keeper.todo <- func() {} // no room is left, and nobody writes
	}
	k := s.beginFlow(typeURL)
	var lives atomic.Int32
	add := func() {
		lives.Add(1)
		content := make([]byte, part)
		piece := mem.NewBuffer(&content, poolOf(func() { lives.Add(-1) }))
		f := &frame{data: mem.BufferSlice{piece}}
		k.add(response{typeURL: typeURL}, f)
		f.free()
	}
	for range 6 {
		add()
	}
	if got := lives.Load(); got != 6 {
		t.Fatalf("%d parts wait for the disk, want 6", got)
	}
	s.keeping.lost = true
	for range 6 {
		add()
	}
	if got := lives.Load(); got != 0 {
		t.Errorf("%d parts are held that are not kept", got)
	}
	if stage := k.end(response{typeURL: typeURL}); stage != 0 {
		t.Errorf("it is kept as %d", stage)
	}
}

// poolOf is told when a buffer is given back.
type poolOf func()

func (poolOf) Get(int) *[]byte { return nil }

func (p poolOf) Put(*[]byte) { p() }
