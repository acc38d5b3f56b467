package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// resourceUsage is the resource usage of the process.
type resourceUsage struct {
	heap              uint64 // bytes
	goroutines, files int
}

func measureUsage(t *testing.T) (h resourceUsage) {
	t.Helper()
	runtime.GC() // twice, to empty pools
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return resourceUsage{heap: m.HeapAlloc, goroutines: runtime.NumGoroutine(), files: len(open)}
}

// Neither accepted large responses nor those that are cut off leak memory, files or goroutines.
func TestLargeResponsesLeakNothing(t *testing.T) {
	if testing.Short() || hasRaceDetector {
		t.Skip("moves a gigabyte")
	}
	const size = 5 << 20
	response := newLargeResponse(t, clusterType, clusterType, size)
	address := startSlowControlPlane(t, response, func(stream int) error {
		if stream%10 == 0 {
			return errors.New("it breaks in the middle")
		}
		return nil
	})
	dir := t.TempDir()
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{dir}}})
	diskWriterOf(t, relay)
	conn, err := net.Dial("unix", relay.config.Socket)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rawgrpc.NewClient(t.Context(), conn, "relay", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	whole, broken := 0, 0
	pass := func() {
		if requestLargeResponse(t, client, len(response)) == nil {
			whole++
		} else {
			broken++
		}
	}
	for range 8 {
		pass()
	}
	before := measureUsage(t)
	for range 200 {
		pass()
	}
	t.Logf("%d whole, %d broken", whole, broken)
	if whole < 100 || broken < 10 {
		t.Errorf("%d responses were complete and %d were cut off", whole, broken)
	}
	testenv.Eventually(t, "all is given back", func() error {
		now := measureUsage(t)
		if now.heap > before.heap+size || now.goroutines > before.goroutines || now.files > before.files {
			return fmt.Errorf("%+v; before %+v", now, before)
		}
		return nil
	})
	if files, err := filepath.Glob(filepath.Join(dir, "configuration.*")); err != nil || len(files) > 2 {
		t.Errorf("%q, %v", files, err)
	}
}

// requestLargeResponse requests a large response on a new stream, and accepts it if it is complete.
func requestLargeResponse(t *testing.T, client *rawgrpc.Client, size int) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := client.Stream(ctx, delta.method(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(newFrame(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: testNode})).data); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(); err != nil {
		return err
	}
	data, err := s.ReadRest(nil)
	if err != nil {
		return err
	}
	defer data.Free()
	if data.Len() != size {
		t.Fatalf("received %d bytes", data.Len())
	}
	return s.Send(newFrame(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "n"})).data)
}
