package xdsproxy

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
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

// Large responses leak neither memory nor files nor goroutines.
func TestLargeResponsesLeakNothing(t *testing.T) {
	if testing.Short() || hasRaceDetector {
		t.Skip("transfers a gigabyte")
	}
	const size = 5 << 20
	response := newLargeResponse(t, clusterType, size)
	address, _ := serveRaw(t, "127.0.0.1:0", func(s grpc.ServerStream) error {
		if err := s.RecvMsg(new(wire.Message)); err != nil {
			return err
		}
		if err := s.SendMsg(wire.NewMessage(response)); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	})
	dir := t.TempDir()
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{dir}}})
	conn := dialRelay(t, relay)
	for range 8 {
		requestLargeResponse(t, conn, len(response))
	}
	before := measureUsage(t)
	for range 200 {
		requestLargeResponse(t, conn, len(response))
	}
	testenv.Eventually(t, "memory, files and goroutines are released", func() error {
		now := measureUsage(t)
		if now.heap > before.heap+size || now.goroutines > before.goroutines || now.files > before.files {
			return fmt.Errorf("%+v; before %+v", now, before)
		}
		return nil
	})
}

// requestLargeResponse requests a large response on a new stream, and accepts it.
func requestLargeResponse(t *testing.T, conn *grpc.ClientConn, size int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, wire.Delta.Method(), grpc.ForceCodecV2(wire.Codec{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SendMsg(wire.NewMessage(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: testNode}))); err != nil {
		t.Fatal(err)
	}
	var f wire.Message
	if err := s.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	defer f.Free()
	if f.Data.Len() != size {
		t.Fatalf("received %d bytes", f.Data.Len())
	}
	if err := s.SendMsg(wire.NewMessage(encode(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResponseNonce: "n"}))); err != nil {
		t.Fatal(err)
	}
}
