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

// led is a control plane that says what the test has it say, and when.
type led struct {
	t       *testing.T
	address string
	stop    func()
	streams chan *ledStream
}

// ledStream is one stream of it. Only the test's goroutine uses it. What it says is said beside the test, in order: a large
// response is taken only while Envoy reads.
type ledStream struct {
	t *testing.T
	*rawgrpc.ServerStream
	todo chan func() error
}

func newLed(t *testing.T, address string) *led {
	t.Helper()
	l := &led{t: t, streams: make(chan *ledStream, 16)}
	serve := func(s *rawgrpc.ServerStream) error {
		one := &ledStream{t: t, ServerStream: s, todo: make(chan func() error, 16)}
		l.streams <- one
		for {
			select {
			case do := <-one.todo:
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

// stream is the next one that the relay opens.
func (l *led) stream() *ledStream {
	l.t.Helper()
	select {
	case s := <-l.streams:
		return s
	case <-time.After(time.Minute):
		l.t.Fatal("the relay opens no stream")
		return nil
	}
}

// hears is the next request, which is to be of a type.
func (s *ledStream) hears(v variant, typeURL string) request {
	s.t.Helper()
	r := s.next(v)
	if r.typeURL != typeURL {
		s.t.Fatalf("asked for %q, want %q", r.typeURL, typeURL)
	}
	return r
}

// next is the next request.
func (s *ledStream) next(v variant) request {
	s.t.Helper()
	if _, err := s.Next(); err != nil {
		s.t.Fatal(err)
	}
	data, err := s.Rest(nil)
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

func (s *ledStream) says(response []byte) {
	s.todo <- func() error { return s.Send(mem.BufferSlice{mem.SliceBuffer(response)}, false) }
}

// begins says the first part of a response only, and ends the rest.
func (s *ledStream) begins(response []byte, part int) {
	s.todo <- func() error {
		return errors.Join(s.Begin(len(response)), s.Continue(mem.BufferSlice{mem.SliceBuffer(response[:part])}), s.Flush())
	}
}

func (s *ledStream) ends(response []byte, part int) {
	s.todo <- func() error {
		return errors.Join(s.Continue(mem.BufferSlice{mem.SliceBuffer(response[part:])}), s.Flush())
	}
}

func (s *ledStream) dies() {
	s.todo <- func() error { return errors.New("it dies") }
}

// one is a delta response of one resource.
func one(t testing.TB, typeURL, nonce, name, version string) []byte {
	t.Helper()
	return encoded(t, &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: nonce, SystemVersionInfo: version, Resources: []*discoveryv3.Resource{
		{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: typeURL, Value: []byte(name + version)}}}})
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
