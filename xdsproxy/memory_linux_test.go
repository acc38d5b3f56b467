package xdsproxy

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/lastgood"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// startRelayProcess starts a relay in another process.
func startRelayProcess(t *testing.T, address string, keep ...string) (socket string, pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "XDS")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), relayProcessEnv+"="+strings.Join(append([]string{socket, address}, keep...), ","))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the relay: %v", err)
		}
	})
	return socket, cmd.Process.Pid
}

// memory reads a line of /proc/PID/status, in bytes.
func memory(t *testing.T, pid int, line string) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(l, line+":"); ok {
			var kib int
			if _, err := fmt.Sscan(rest, &kib); err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("no %s", line)
	return 0
}

// serveMegabytes starts a control plane that responds to each first request with the specified number of
// resources of 1 MiB. It has only one of them in memory.
func serveMegabytes(t *testing.T, resources int) string {
	t.Helper()
	content := wire.AppendText(nil, 15, strings.Repeat("x", 1<<20))
	response := mem.BufferSlice{mem.SliceBuffer(wire.AppendText(wire.AppendText(nil, wire.SotWType, clusterType), wire.ResponseNonce, "n"))}
	for i := range resources {
		name := wire.AppendText(nil, 1, fmt.Sprintf("%03d", i))
		value := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), uint64(len(name)+len(content)))
		head := protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.BytesType), uint64(len(value)+len(name)+len(content)))
		response = append(response, mem.SliceBuffer(append(append(head, value...), name...)), mem.SliceBuffer(content))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}), grpc.WaitForHandlers(true))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: wire.Service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: wire.SotWMethod, ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				var f wire.Message
				if err := s.RecvMsg(&f); err != nil {
					return nil
				}
				r, err := wire.ParseRequest(wire.SotW, f.Data)
				f.Free()
				if err != nil {
					return err
				}
				if r.Nonce != "" {
					continue
				}
				if err := s.SendMsg(&wire.Message{Data: response}); err != nil {
					return err
				}
			}
		},
	}}}, nil)
	served := make(chan struct{})
	go func() { defer close(served); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return l.Addr().String()
}

func TestLargeResponseIsNotCopied(t *testing.T) {
	if testing.Short() || hasRaceDetector {
		t.Skip("transfers 200 MB, and the race detector uses several times the memory")
	}
	measureMemory(t, 200, "", 300)
}

func TestStoringLargeResponseDoesNotCopyIt(t *testing.T) {
	if testing.Short() || hasRaceDetector {
		t.Skip("moves 50 MB, and weighs what the race detector has several times")
	}
	dir := t.TempDir()
	measureMemory(t, 50, dir, 75)
	if bytes, err := writtenBytes(dir); err != nil || bytes < 50<<20 {
		t.Errorf("stored %d bytes, %v", bytes, err)
	}
}

// writtenBytes returns the size of the stored clusters.
func writtenBytes(dir string) (int64, error) {
	info, err := os.Stat(filepath.Join(dir, "envoy.config.cluster.v3.Cluster.snapshot"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// measureMemory sends a response of the specified number of megabytes and checks that the relay's memory stays below
// the limit in megabytes.
func measureMemory(t *testing.T, pieces int, dir string, most int) {
	t.Helper()
	address := serveMegabytes(t, pieces)
	var keep []string
	if dir != "" {
		keep = append(keep, dir)
	}
	socket, pid := startRelayProcess(t, address, keep...)
	conn := dialRelay(t, &Relay{config: Config{Socket: socket}})
	before := memory(t, pid, "VmRSS")
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, wire.SotW.Method(),
		grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	ask := wire.AppendText(wire.AppendBytes(nil, wire.SotWNode, encode(t, testNode)), wire.SotWType, clusterType)
	if err := stream.SendMsg(wire.NewMessage(ask)); err != nil {
		t.Fatal(err)
	}
	var f wire.Message
	if err := stream.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	size := f.Data.Len()
	f.Free()
	if size < pieces<<20 {
		t.Errorf("%d bytes arrived", size)
	}
	if dir != "" {
		ack := wire.AppendText(wire.AppendText(wire.AppendText(nil, wire.SotWVersion, "1"), wire.SotWType, clusterType), wire.SotWNonce, "n")
		if err := stream.SendMsg(wire.NewMessage(ack)); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the response is stored", func() error {
			bytes, err := writtenBytes(dir)
			if err == nil && bytes < int64(pieces)<<20 {
				err = fmt.Errorf("%d bytes", bytes)
			}
			return err
		})
	}
	if grown := memory(t, pid, "VmHWM") - before; grown > most<<20 {
		t.Errorf("the relay used %[2]d MB for a response of %[1]d MB", size>>20, grown>>20)
	} else {
		t.Logf("the relay used %[2]d MB for a response of %[1]d MB", size>>20, grown>>20)
	}
	testenv.Eventually(t, "the memory is released", func() error {
		if grown := memory(t, pid, "VmRSS") - before; grown > 10<<20 {
			return fmt.Errorf("%d MB more than before", grown>>20)
		}
		return nil
	})
}

// A response above the limit is not read, and Envoy's stream is not affected.
func TestTooLargeResponseEndsOnlyUpstreamStream(t *testing.T) {
	good := newAnsweringControlPlane([]byte("c"))
	var streams atomic.Int32
	cp := &fakeControlPlane{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
		if streams.Add(1) > 2 {
			return good.sotw(s)
		}
		if _, err := s.Recv(); err != nil {
			return err
		}
		if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: clusterURL, Resources: []*anypb.Any{{Value: make([]byte, 3<<20)}}}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}}
	address, _ := cp.listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, MaxResponse: 2 << 20})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	if r := receive(t, stream); string(r.GetResources()[0].GetValue()) != "c" {
		t.Errorf("Envoy received %v", r)
	}
	seen := false
	for _, e := range relay.History().Events {
		seen = seen || e.Kind == EventDisconnected && strings.Contains(e.Reason, "larger than max")
	}
	if !seen {
		t.Errorf("the history does not contain the reason: %+v", relay.History().Events)
	}
}

// The size of Envoy's requests is limited, too.
func TestTooLargeRequestIsRefused(t *testing.T) {
	address, _ := newAnsweringControlPlane([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, MaxRequest: 1 << 20})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, VersionInfo: strings.Repeat("x", 2<<20)})
	if _, err := stream.Recv(); err == nil {
		t.Error("a request above the limit was accepted")
	}
	again := sotwStream(t, relay)
	send(t, again, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, again)
}

func TestServingLargeLastGoodUsesMemoryOnce(t *testing.T) {
	if testing.Short() || hasRaceDetector {
		t.Skip("moves 50 MB, and weighs what the race detector has several times")
	}
	dir := t.TempDir()
	store := lastgood.Open(lastgood.Config{Dirs: []string{dir}})
	recording := store.Begin(lastgood.Identity{Node: testNode.Id, Cluster: testNode.Cluster, Protocol: "sotw"})
	response := wire.Response{TypeURL: clusterType, Version: "1"}
	var content []byte
	for i := range 50 {
		response.Resources = append(response.Resources, wire.Resource{Name: fmt.Sprint(i)})
		content = wire.AppendBytes(content, wire.ResponseResources, wire.AppendText(nil, 2, strings.Repeat("x", 1<<20)))
	}
	recording.Accept(response, wire.NewMessage(content), true, nil)
	recording.Complete(nil, nil)
	store.Close()

	socket, pid := startRelayProcess(t, freeAddress(t), dir)
	conn := dialRelay(t, &Relay{config: Config{Socket: socket}})
	before := memory(t, pid, "VmRSS")
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, wire.SotW.Method(),
		grpc.ForceCodecV2(wire.Codec{}), grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(wire.NewMessage(wire.AppendText(wire.AppendBytes(nil, wire.SotWNode, encode(t, testNode)), wire.SotWType, clusterType))); err != nil {
		t.Fatal(err)
	}
	var f wire.Message
	if err := stream.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	size := f.Data.Len()
	f.Free()
	grown := memory(t, pid, "VmHWM") - before
	t.Logf("the relay used %[2]d MB for %[1]d MB", size>>20, grown>>20)
	if size < 50<<20 || grown > size+size/2 {
		t.Errorf("the relay used %[2]d MB for %[1]d MB of the last accepted configuration", size>>20, grown>>20)
	}
}
