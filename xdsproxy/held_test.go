package xdsproxy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const heldSize = 4 << 20

// holding runs a relay that keeps, and an Envoy that has got a large response and not answered it.
func holding(t *testing.T, lastGood LastGood) (r *Relay, envoy *envoyLike, nonce string) {
	t.Helper()
	response := large(t, listenerType, listenerType, heldSize)
	address := slowly(t, response, func(int) error { return nil })
	lastGood.Dirs = []string{t.TempDir()}
	r, _ = run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: lastGood})
	keeperOf(t, r)
	envoy = newEnvoyLike(t, r)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	got, err := envoy.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return r, envoy, got.Nonce
}

// onDisk is how much is written by now.
func onDisk(t *testing.T, r *Relay) (bytes int64) {
	t.Helper()
	done := make(chan struct{})
	if !keeperOf(t, r).put(func() { close(done) }) {
		t.Fatal("nothing more is written")
	}
	<-done
	files, err := filepath.Glob(filepath.Join(r.config.LastGood.Dirs[0], "configuration.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}

// awaitHeld waits until something is held, or nothing.
func awaitHeld(t *testing.T, r *Relay, some bool) {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("something is held: %v", some), func() error {
		if n := r.holding.Load(); n > 0 != some {
			return fmt.Errorf("%d bytes are", n)
		}
		return nil
	})
}

func TestLargeResponseIsWrittenOnlyOnceEnvoyHasAcceptedIt(t *testing.T) {
	r, envoy, nonce := holding(t, LastGood{unanswered: time.Hour})
	awaitHeld(t, r, true)
	if n := onDisk(t, r); n > heldSize/2 {
		t.Errorf("%d bytes are written already", n)
	}
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: nonce})
	kept(t, r, time.Time{})
	awaitHeld(t, r, false)
	if n := onDisk(t, r); n < heldSize {
		t.Errorf("%d bytes are written", n)
	}
}

func TestLargeResponseThatEnvoyRejectsIsNeverWritten(t *testing.T) {
	r, envoy, nonce := holding(t, LastGood{unanswered: time.Hour})
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: nonce, ErrorDetail: &rpcstatus.Status{Code: 3, Message: "no"}})
	awaitHeld(t, r, false)
	if n := onDisk(t, r); n > heldSize/2 {
		t.Errorf("%d bytes are written", n)
	}
}

func TestLargeResponseThatEnvoyDoesNotAnswerIsNotHeldForEver(t *testing.T) {
	r, envoy, nonce := holding(t, LastGood{unanswered: 10 * time.Millisecond})
	awaitHeld(t, r, false)
	if n := onDisk(t, r); n < heldSize {
		t.Errorf("%d bytes are written", n)
	}
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType, ResponseNonce: nonce})
	kept(t, r, time.Time{})
}

func TestResponseIsNotHeldLongerThanItsStream(t *testing.T) {
	r, _, _ := holding(t, LastGood{unanswered: time.Hour})
	awaitHeld(t, r, true)
	newEnvoyLike(t, r).send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType}) // which displaces the other one
	awaitHeld(t, r, false)
}

// With all room taken, a response is written while it passes.
func TestLargeResponseForWhichThereIsNoRoomIsKeptAllTheSame(t *testing.T) {
	response := large(t, listenerType, listenerType, heldSize)
	address := slowly(t, response, func(int) error { return nil })
	r, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	keeperOf(t, r)
	r.holding.Store(maxHeld - heldSize/2)
	envoy := newEnvoyLike(t, r)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	envoy.take(listenerType, "")
	kept(t, r, time.Time{})
	if n := onDisk(t, r); n < heldSize || r.holding.Load() != maxHeld-heldSize/2 {
		t.Errorf("%d bytes are written, %d held", n, r.holding.Load())
	}
}

// What dies in the middle is not held either.
func TestLargeResponseThatIsNotCompletedIsNotHeld(t *testing.T) {
	response := large(t, listenerType, listenerType, heldSize)
	dies := make(chan struct{})
	address := slowly(t, response, func(int) error { <-dies; return errors.New("it dies") })
	r, _ := run(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}})
	keeperOf(t, r)
	envoy := newEnvoyLike(t, r)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	awaitHeld(t, r, true)
	close(dies)
	if _, err := envoy.stream.Recv(); err == nil {
		t.Fatal("Envoy got all of it")
	}
	awaitHeld(t, r, false)
}
