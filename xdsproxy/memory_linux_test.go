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
)

// relayAlone starts such a process.
func relayAlone(t *testing.T, address string, keep ...string) (socket string, pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "XDS")
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), aloneEnv+"="+strings.Join(append([]string{socket, address}, keep...), ","))
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

// memory reads a line of a process's status, in bytes.
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

// piecemeal is a control plane that answers every first request with a large response, of which it has one piece only.
func piecemeal(t *testing.T, piece []byte, pieces int) string {
	t.Helper()
	resource := protowire.AppendTag(nil, 2, protowire.BytesType)
	resource = protowire.AppendVarint(resource, uint64(len(piece)))
	head := appendText(appendText(nil, sotwType, clusterType), responseNonce, "n")
	response := mem.BufferSlice{mem.SliceBuffer(head)}
	for range pieces {
		response = append(response, mem.SliceBuffer(resource), mem.SliceBuffer(piece))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.WaitForHandlers(true))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: sotwMethod, ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				var f frame
				if err := s.RecvMsg(&f); err != nil {
					return nil
				}
				r, err := peekRequest(sotw, f.data)
				f.free()
				if err != nil {
					return err
				}
				if r.nonce != "" {
					continue
				}
				if err := s.SendMsg(&frame{data: response}); err != nil {
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

func TestTwoHundredMegabytesPassWithoutSeveralCopies(t *testing.T) {
	if testing.Short() || detector {
		t.Skip("moves 200 MB, and weighs what the race detector has several times")
	}
	weigh(t, 200, "", "", 300)
}

func TestKeepingFiftyMegabytesTakesNoCopyOfThem(t *testing.T) {
	if testing.Short() || detector {
		t.Skip("moves 50 MB, and weighs what the race detector has several times")
	}
	dir := t.TempDir()
	weigh(t, 50, dir, "", 75)
	if bytes, err := written(dir); err != nil || bytes < 50<<20 {
		t.Errorf("kept %d bytes, %v", bytes, err)
	}
}

func TestKeepingFiftyMegabytesThatGoOnInPartsTakesNoCopyOfThem(t *testing.T) {
	if testing.Short() || detector {
		t.Skip("moves 50 MB, and weighs what the race detector has several times")
	}
	dir := t.TempDir()
	weigh(t, 50, dir, clusterType, 75)
	if bytes, err := written(dir); err != nil || bytes < 50<<20 {
		t.Errorf("kept %d bytes, %v", bytes, err)
	}
}

// written is how long the file is that is written beside what counts: this Envoy never asks for all.
func written(dir string) (int64, error) {
	info, err := os.Stat(filepath.Join(dir, "configuration.new"))
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func TestLargeResponseThatGoesOnWhileItArrivesIsNeverHeldWhole(t *testing.T) {
	if testing.Short() || detector {
		t.Skip("moves 100 MB, and weighs what the race detector has several times")
	}
	weigh(t, 100, "", clusterType, 50)
}

// weigh moves a response of so many megabytes, whose resources say that they are of a type, and looks at whether that takes
// at most so many megabytes of the relay.
func weigh(t *testing.T, pieces int, dir, typeURL string, most int) {
	t.Helper()
	resource := append([]byte{0x0a, 1, 'n'}, appendText(nil, 15, strings.Repeat("x", 1<<20))...)
	var piece []byte
	if typeURL != "" {
		piece = appendText(piece, anyType, typeURL)
	}
	piece = appendBytes(piece, 2, resource)
	address := piecemeal(t, piece, pieces)
	var keep []string
	if dir != "" {
		keep = append(keep, dir)
	}
	socket, pid := relayAlone(t, address, keep...)
	conn := dialRelay(t, &Relay{config: Config{Socket: socket}})
	before := memory(t, pid, "VmRSS")
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, sotw.method(),
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	ask := appendText(appendBytes(nil, sotwNode, marshal(t, testNode)), sotwType, clusterType)
	if err := stream.SendMsg(message(ask)); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := stream.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	size := f.data.Len()
	f.free()
	if size < pieces<<20 {
		t.Errorf("%d bytes arrived", size)
	}
	if dir != "" {
		ack := appendText(appendText(appendText(nil, sotwVersion, "1"), sotwType, clusterType), sotwNonce, "n")
		if err := stream.SendMsg(message(ack)); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "it is written", func() error {
			bytes, err := written(dir)
			if err == nil && bytes < int64(pieces)<<20 {
				err = fmt.Errorf("%d bytes", bytes)
			}
			return err
		})
	}
	if grown := memory(t, pid, "VmHWM") - before; grown > most<<20 {
		t.Errorf("a response of %d MB took %d MB of the relay", size>>20, grown>>20)
	} else {
		t.Logf("a response of %d MB took %d MB of the relay", size>>20, grown>>20)
	}
}

// A control plane may send anything. What is larger than the bound is not even read, and Envoy notices nothing of it.
func TestResponseBeyondTheBoundEndsTheControlPlanesStreamAndNotEnvoys(t *testing.T) {
	good := answering([]byte("c"))
	var streams atomic.Int32
	cp := &upstream{sotw: func(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
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
		t.Errorf("Envoy got %v", r)
	}
	seen := false
	for _, e := range relay.History().Events {
		seen = seen || e.Kind == EventDisconnected && strings.Contains(e.Reason, "larger than max")
	}
	if !seen {
		t.Errorf("the history does not say why: %+v", relay.History().Events)
	}
}

// What Envoy says is bounded, too.
func TestRequestBeyondTheBoundIsRefused(t *testing.T) {
	address, _ := answering([]byte("c")).listen(t, "127.0.0.1:0", nil)
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, MaxRequest: 1 << 20})
	stream := sotwStream(t, relay)
	send(t, stream, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL, VersionInfo: strings.Repeat("x", 2<<20)})
	if _, err := stream.Recv(); err == nil {
		t.Error("a request beyond the bound was taken")
	}
	again := sotwStream(t, relay)
	send(t, again, &discoveryv3.DiscoveryRequest{TypeUrl: clusterURL})
	receive(t, again)
}

func TestServingFiftyMegabytesOfTheLastGoodConfigurationTakesThemOnce(t *testing.T) {
	if testing.Short() || detector {
		t.Skip("moves 50 MB, and weighs what the race detector has several times")
	}
	dir := t.TempDir()
	store, err := lastgood.Open(lastgood.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	store.Begin(lastgood.Identity{Node: testNode.Id, Cluster: testNode.Cluster, Protocol: "sotw"}, true)
	content := appendText(nil, 2, strings.Repeat("x", 1<<20))
	for i := range 50 {
		store.Resource(1, clusterType, fmt.Sprint(i), "", content)
	}
	store.Response(1, clusterType, "1", true)
	store.Accepted(1)
	store.Mark()
	store.Close()

	socket, pid := relayAlone(t, freeAddress(t), dir)
	conn := dialRelay(t, &Relay{config: Config{Socket: socket}})
	before := memory(t, pid, "VmRSS")
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, sotw.method(),
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(message(appendText(appendBytes(nil, sotwNode, marshal(t, testNode)), sotwType, clusterType))); err != nil {
		t.Fatal(err)
	}
	var f frame
	if err := stream.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	size := f.data.Len()
	f.free()
	grown := memory(t, pid, "VmHWM") - before
	t.Logf("%d MB took %d MB of the relay", size>>20, grown>>20)
	if size < 50<<20 || grown > size+size/2 {
		t.Errorf("%d MB of the last good configuration took %d MB of the relay", size>>20, grown>>20)
	}
}
