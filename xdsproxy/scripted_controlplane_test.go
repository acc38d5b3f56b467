package xdsproxy

import (
	"errors"
	"log/slog"
	"net"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pilotfish-mesh/pilotfish/internal/rawgrpc"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// manualControlPlane is a control plane whose responses the test sends explicitly.
type manualControlPlane struct {
	t       *testing.T
	address string
	stop    func()
	streams chan *manualStream
}

// manualStream is one of its streams, for use by the test's goroutine. Another goroutine sends the responses in order,
// because a large response is accepted only while Envoy reads.
type manualStream struct {
	t *testing.T
	*rawgrpc.ServerStream
	queue chan func() error
}

func newManualControlPlane(t *testing.T, address string) *manualControlPlane {
	t.Helper()
	l := &manualControlPlane{t: t, streams: make(chan *manualStream, 16)}
	serve := func(s *rawgrpc.ServerStream) error {
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
	}
	server := rawgrpc.NewServer(map[string]rawgrpc.Handler{delta.method(): serve, sotw.method(): serve}, 64<<20, nil, slog.New(slog.DiscardHandler))
	var listener net.Listener
	testenv.Eventually(t, "listening on "+address, func() (err error) {
		listener, err = net.Listen("tcp", address)
		return err
	})
	l.address = listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	l.stop = func() { server.Stop(); <-served }
	t.Cleanup(func() { server.Stop() })
	return l
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
func (s *manualStream) receive(v variant, typeURL string) request {
	s.t.Helper()
	r := s.next(v)
	if r.typeURL != typeURL {
		s.t.Fatalf("requested %q, want %q", r.typeURL, typeURL)
	}
	return r
}

// next returns the next request.
func (s *manualStream) next(v variant) request {
	s.t.Helper()
	if _, err := s.Next(); err != nil {
		s.t.Fatal(err)
	}
	data, err := s.ReadRest(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer data.Free()
	r, err := peekRequest(v, data)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

func (s *manualStream) send(response []byte) {
	s.queue <- func() error { return s.Send(mem.BufferSlice{mem.SliceBuffer(response)}, false) }
}

// sendPartially sends the first part of a response; end sends the rest.
func (s *manualStream) sendPartially(response []byte, part int) {
	s.queue <- func() error {
		return errors.Join(s.BeginMessage(len(response)), s.WritePiece(mem.BufferSlice{mem.SliceBuffer(response[:part])}), s.Flush())
	}
}

func (s *manualStream) end(response []byte, part int) {
	s.queue <- func() error {
		return errors.Join(s.WritePiece(mem.BufferSlice{mem.SliceBuffer(response[part:])}), s.Flush())
	}
}

func (s *manualStream) abort() {
	s.queue <- func() error { return errors.New("control plane failed") }
}

// newResource returns a delta response with one resource.
func newResource(t testing.TB, typeURL, nonce, name, version string) []byte {
	t.Helper()
	return encode(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: version, Resources: []*discoveryv3.Resource{
		{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(name + version)}}}})
}

func encode(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
