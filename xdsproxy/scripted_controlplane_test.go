package xdsproxy

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/xdsproxy/wire"
)

// manualControlPlane is a control plane whose responses the test sends explicitly.
type manualControlPlane struct {
	t       *testing.T
	address string
	stop    func()
	streams chan *manualStream
}

// manualStream is a stream of a manualControlPlane, for use by the test's goroutine. Another goroutine sends the responses in order,
// because a large response is accepted only while Envoy reads.
type manualStream struct {
	t *testing.T
	grpc.ServerStream
	queue chan func() error
}

func newManualControlPlane(t *testing.T, address string) *manualControlPlane {
	t.Helper()
	l := &manualControlPlane{t: t, streams: make(chan *manualStream, 16)}
	l.address, l.stop = serveRaw(t, address, func(s grpc.ServerStream) error {
		one := &manualStream{t: t, ServerStream: s, queue: make(chan func() error, 16)}
		l.streams <- one
		for {
			select {
			case do := <-one.queue:
				if err := do(); err != nil {
					return err
				}
			case <-s.Context().Done():
				return nil
			}
		}
	})
	return l
}

// serveRaw serves the streams of both protocol variants on the address until stop is called or the test ends.
func serveRaw(t *testing.T, address string, serve func(grpc.ServerStream) error) (at string, stop func()) {
	t.Helper()
	server := grpc.NewServer(grpc.ForceServerCodecV2(wire.Codec{}), grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(64<<20))
	handler := func(_ any, s grpc.ServerStream) error { return serve(s) }
	server.RegisterService(&grpc.ServiceDesc{ServiceName: wire.Service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: wire.SotWMethod, ServerStreams: true, ClientStreams: true, Handler: handler},
		{StreamName: wire.DeltaMethod, ServerStreams: true, ClientStreams: true, Handler: handler},
	}}, nil)
	var listener net.Listener
	testenv.Eventually(t, "listening on "+address, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() { server.Stop(); serving.Wait() })
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// acceptStream returns the next stream that the relay opens.
func (l *manualControlPlane) acceptStream() *manualStream {
	l.t.Helper()
	select {
	case s := <-l.streams:
		return s
	case <-time.After(time.Minute):
		l.t.Fatal("the relay did not open a stream")
		return nil
	}
}

// receive returns the next request, which must have the type.
func (s *manualStream) receive(v wire.Variant, typeURL string) wire.Request {
	s.t.Helper()
	r := s.next(v)
	if r.TypeURL != typeURL {
		s.t.Fatalf("requested %q, want %q", r.TypeURL, typeURL)
	}
	return r
}

// next returns the next request.
func (s *manualStream) next(v wire.Variant) wire.Request {
	s.t.Helper()
	f := new(wire.Message)
	if err := s.RecvMsg(f); err != nil {
		s.t.Fatal(err)
	}
	defer f.Free()
	r, err := wire.ParseRequest(v, f.Data)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *manualStream) send(response []byte) {
	s.queue <- func() error { return s.SendMsg(wire.NewMessage(response)) }
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// newLargeResponse returns a delta response with resources of about size bytes.
func newLargeResponse(t testing.TB, typeURL string, size int) []byte {
	t.Helper()
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: "n", SystemVersionInfo: "s"}
	content := []byte(strings.Repeat("x", 1000))
	for i := range size / 1000 {
		r.Resources = append(r.Resources, &discoveryv3.Resource{
			Name: fmt.Sprintf("c%d", i), Version: fmt.Sprint(i), Resource: &anypb.Any{TypeUrl: typeURL, Value: content}})
	}
	return encode(t, r)
}
