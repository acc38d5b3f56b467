package xdsproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// startSlowControlPlane starts a control plane that answers the first request of each stream with a response in two
// parts. Between them it calls the function with the number of the stream, and ends the stream if that fails.
func startSlowControlPlane(t *testing.T, response []byte, between func(stream int) error) (address string) {
	t.Helper()
	var streams atomic.Int32
	serve := func(s *rawgrpc.ServerStream) error {
		if _, err := s.Next(); err != nil {
			return err
		}
		n := int(streams.Add(1))
		half := len(response) / 2
		if err := errors.Join(s.BeginMessage(len(response)), s.WritePiece(mem.BufferSlice{mem.SliceBuffer(response[:half])}), s.Flush()); err != nil {
			return err
		}
		if err := between(n); err != nil {
			return err
		}
		if err := s.WritePiece(mem.BufferSlice{mem.SliceBuffer(response[half:])}); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}
	server := rawgrpc.NewServer(map[string]rawgrpc.Handler{delta.method(): serve, sotw.method(): serve}, 64<<20, nil, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return l.Addr().String()
}

// newLargeResponse returns a response with clusters of about size bytes.
func newLargeResponse(t testing.TB, typeURL, of string, size int) []byte {
	t.Helper()
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n", SystemVersionInfo: "s"}
	content := []byte(strings.Repeat("x", 1000))
	for i := range size / 1000 {
		r.Resources = append(r.Resources, &discoveryv3.Resource{
			Name: fmt.Sprintf("c%d", i), Version: fmt.Sprint(i), Resource: &anypb.Any{TypeUrl: of, Value: content}})
	}
	data, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// raw opens a stream that reads single chunks.
func raw(t *testing.T, r *Relay) *rawgrpc.ClientStream {
	t.Helper()
	var conn net.Conn
	testenv.Eventually(t, "the relay listens", func() (err error) {
		conn, err = net.Dial("unix", r.config.Socket)
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	c, err := rawgrpc.NewClient(ctx, conn, "relay", 64<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	s, err := c.Stream(ctx, delta.method(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ask, err := proto.Marshal(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, Node: testNode})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(newFrame(ask).data); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLargeResponseIsForwardedWhileItArrives(t *testing.T) {
	response := newLargeResponse(t, clusterType, clusterType, 8<<20)
	seen := make(chan struct{})
	address := startSlowControlPlane(t, response, func(int) error { <-seen; return nil })
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	s := raw(t, relay)
	size, err := s.Next()
	if err != nil || size != len(response) {
		t.Fatalf("%d bytes are announced of %d, %v", size, len(response), err)
	}
	first, err := s.NextPiece()
	if err != nil {
		t.Fatal(err)
	}
	if !relay.Status().Connected {
		t.Error("the control plane is not known to answer")
	}
	close(seen)
	rest, err := s.ReadRest(mem.BufferSlice{first})
	if err != nil || string(rest.Materialize()) != string(response) {
		t.Errorf("received %d bytes of %d, %v", rest.Len(), len(response), err)
	}
	rest.Free()
	if st := typeStatus(relay, clusterType); st.LastResources != (8<<20)/1000 {
		t.Errorf("booked: %+v", st)
	}
}

// Envoy does not accept a partial response, and receives the response in one piece on its next stream.
func TestCutOffLargeResponseEndsOneStreamOfEnvoy(t *testing.T) {
	response := newLargeResponse(t, clusterType, clusterType, 8<<20)
	dies := make(chan struct{})
	address := startSlowControlPlane(t, response, func(stream int) error {
		if stream == 1 {
			<-dies
			return errors.New("control plane failed")
		}
		return nil
	})
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	s := raw(t, relay)
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	close(dies)
	if _, err := s.ReadRest(nil); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("half a response was completed: %v", err)
	}
	again := raw(t, relay)
	if size, err := again.Next(); err != nil || size != len(response) {
		t.Fatalf("%d bytes, %v", size, err)
	}
	data, err := again.ReadRest(nil)
	if err != nil || string(data.Materialize()) != string(response) {
		t.Errorf("received %d bytes of %d, %v", data.Len(), len(response), err)
	}
	data.Free()
	if relay.isChunkBroken.Load() {
		t.Error("a complete response did not enable chunking again")
	}
}

// A response with resources of another type is forwarded unchanged, but not in chunks.
func TestUnchunkableLargeResponseIsForwardedWhole(t *testing.T) {
	response := newLargeResponse(t, clusterType, listenerType, 4<<20)
	address := startSlowControlPlane(t, response, func(int) error { return nil })
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true}})
	s := raw(t, relay)
	if _, err := s.Next(); err == nil {
		if _, err := s.ReadRest(nil); err == nil {
			t.Fatal("it went on in parts")
		}
	}
	again := raw(t, relay)
	if size, err := again.Next(); err != nil || size != len(response) {
		t.Fatalf("%d bytes, %v", size, err)
	}
	data, err := again.ReadRest(nil)
	if err != nil {
		t.Fatal(err)
	}
	data.Free()
}

func TestLargeLocalResponseIsNotSentToEnvoy(t *testing.T) {
	response := newLargeResponse(t, clusterType, clusterType, 4<<20)
	applied := make(chan int, 1)
	address := startSlowControlPlane(t, response, func(int) error { return nil })
	relay := start(t, Config{Upstreams: []string{address}, Server: Server{Plaintext: true},
		Local: []LocalType{{TypeURL: clusterType, Apply: func(resources [][]byte, _ string) error { applied <- len(resources); return nil }}}})
	raw(t, relay)
	select {
	case n := <-applied:
		if n != (4<<20)/1000 {
			t.Errorf("%d resources", n)
		}
	case <-time.After(time.Minute):
		t.Fatal("it was not applied")
	}
	if st := typeStatus(relay, clusterType); st.Responses != 0 {
		t.Errorf("Envoy received %+v", st)
	}
}

func TestChunkedResponseIsStored(t *testing.T) {
	const size = 4 << 20
	response := newLargeResponse(t, listenerType, listenerType, size)
	address := startSlowControlPlane(t, response, func(int) error { return nil })
	config := Config{Upstreams: []string{address}, Server: Server{Plaintext: true}, LastGood: LastGood{Dirs: []string{t.TempDir()}}}
	relay, stop := run(t, config)
	envoy := newFakeEnvoy(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	got := envoy.accept(listenerType, "")
	waitStored(t, relay, time.Time{})
	stop()

	config.Upstreams = []string{freeAddress(t)}
	relay, _ = run(t, config)
	envoy = newFakeEnvoy(t, relay)
	envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: listenerType})
	held := make(map[string]string)
	for len(held) < len(got.Resources) {
		for _, one := range envoy.accept(listenerType, "").Resources {
			held[one.Name] = one.Version + string(one.Resource.Value)
		}
	}
	for _, one := range got.Resources {
		if held[one.Name] != one.Version+string(one.Resource.Value) {
			t.Fatalf("%s is not what it was", one.Name)
		}
	}
}

// FuzzIncrementalParser compares the incremental with the complete parse of responses in arbitrary pieces.
func FuzzIncrementalParser(f *testing.F) {
	f.Add(newLargeResponse(f, clusterType, clusterType, 3000), 7, true)
	f.Add(marshal(f, &discoveryv3.DiscoveryResponse{TypeUrl: "t", Resources: []*anypb.Any{{TypeUrl: "t", Value: []byte{0x0a, 1, 'n'}}}}), 1, false)
	f.Fuzz(func(t *testing.T, data []byte, size int, isDelta bool) {
		v, step := sotw, max(size, 1)
		if isDelta {
			v = delta
		}
		want, wrong := peekResponse(v, pieces(data, step))
		if wrong != nil || len(data) == 0 {
			return
		}
		g := &incrementalParser{proto: v}
		cut := pieces(data, step)
		for _, piece := range cut[:len(cut)-1] {
			g.add(piece)
		}
		got, err := g.finish(cut[len(cut)-1])
		if err != nil || fmt.Sprint(got.resources, got.removed) != fmt.Sprint(want.resources, want.removed) {
			t.Errorf("parsed %+v, %v; want %+v", got, err, want)
		}
	})
}
