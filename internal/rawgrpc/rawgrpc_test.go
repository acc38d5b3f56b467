package rawgrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	method  = "/test.Service/Talk"
	most    = 8 << 20
	patient = 30 * time.Second
)

// plain is a codec with which gRPC clients and servers exchange bytes.
type plain struct{}

func (plain) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (plain) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (plain) Name() string { return "proto" }

var desc = grpc.StreamDesc{StreamName: "Talk", ServerStreams: true, ClientStreams: true}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// startGRPCServer starts a server of grpc-go.
func startGRPCServer(t *testing.T, handler func(grpc.ServerStream) error) (address string, server *grpc.Server) {
	t.Helper()
	server = grpc.NewServer(grpc.ForceServerCodecV2(plain{}), grpc.MaxRecvMsgSize(most), grpc.WaitForHandlers(true))
	d := desc
	d.Handler = func(_ any, s grpc.ServerStream) error { return handler(s) }
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "test.Service", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{d}}, nil)
	l := listen(t)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return l.Addr().String(), server
}

// ours starts a server of this package.
func ours(t *testing.T, handler Handler) (address string) {
	t.Helper()
	server := NewServer(map[string]Handler{method: handler}, most, nil, slog.New(slog.DiscardHandler))
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Errorf("serving ended with %v", err)
		}
	})
	return l.Addr().String()
}

func client(t *testing.T, address string) *Client {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	c, err := NewClient(ctx, conn, "test", most)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func talk(t *testing.T, c *Client) *ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	s, err := c.Stream(ctx, method, metadata.Pairs("who", "me"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// openGRPCStream opens a stream with a client of grpc-go.
func openGRPCStream(t *testing.T, address, method string) grpc.ClientStream {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(plain{}), grpc.MaxCallRecvMsgSize(most)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	t.Cleanup(cancel)
	s, err := conn.NewStream(ctx, &desc, method)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func readWhole(m *Messages) ([]byte, error) {
	if _, err := m.Next(); err != nil {
		return nil, err
	}
	data, err := m.ReadRest(nil)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	return data.Materialize(), nil
}

func pieces(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

var sizes = []int{0, 1, 300, 5000, 17000, 70000, 3 << 20, 2}

func TestMessagesOfAllSizesWithGRPCServer(t *testing.T) {
	address, _ := startGRPCServer(t, func(s grpc.ServerStream) error {
		if md, _ := metadata.FromIncomingContext(s.Context()); md.Get("who")[0] != "me" {
			return errors.New("no header")
		}
		for {
			var b []byte
			if err := s.RecvMsg(&b); err == io.EOF {
				return nil
			} else if err != nil {
				return err
			}
			if err := s.SendMsg(&b); err != nil {
				return err
			}
		}
	})
	s := talk(t, client(t, address))
	for _, size := range sizes {
		sent := bytes.Repeat([]byte{byte(size)}, size)
		if err := s.Send(pieces(sent)); err != nil {
			t.Fatal(err)
		}
		if got, err := readWhole(s.Messages); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	s.CloseSend()
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

func TestServerHeadersPrecedeMessages(t *testing.T) {
	proceed := make(chan struct{})
	address, _ := startGRPCServer(t, func(s grpc.ServerStream) error {
		<-proceed
		if err := s.SendHeader(metadata.Pairs("offers", "a", "offers", "b")); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	})
	s := talk(t, client(t, address))
	if got := s.Header("offers"); got != nil {
		t.Errorf("before it began: %q", got)
	}
	close(proceed)
	select {
	case <-s.HeaderReceived():
	case <-time.After(patient):
		t.Fatal("the stream does not begin")
	}
	if got := s.Header("offers"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got %q", got)
	}
	if got := s.Header("other"); got != nil {
		t.Errorf("another header: %q", got)
	}
}

func TestMessagesOfAllSizesWithGRPCClient(t *testing.T) {
	address := ours(t, func(s *ServerStream) error {
		for {
			b, err := readWhole(s.Messages)
			if err == io.EOF {
				return status.Error(codes.DataLoss, "100% done, schön")
			}
			if err != nil {
				return err
			}
			if err := s.Send(pieces(b), s.HasNext()); err != nil {
				return err
			}
		}
	})
	s := openGRPCStream(t, address, method)
	for _, size := range sizes {
		sent := bytes.Repeat([]byte{byte(size)}, size)
		if err := s.SendMsg(&sent); err != nil {
			t.Fatal(err)
		}
		var got []byte
		if err := s.RecvMsg(&got); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	_ = s.CloseSend()
	var got []byte
	if err := s.RecvMsg(&got); status.Code(err) != codes.DataLoss || status.Convert(err).Message() != "100% done, schön" {
		t.Errorf("the end: %v", err)
	}
}

func TestServerStatusIsReturned(t *testing.T) {
	address, _ := startGRPCServer(t, func(s grpc.ServerStream) error { return status.Error(codes.Unauthenticated, "no: 100% ü") })
	_, err := talk(t, client(t, address)).Next()
	if status.Code(err) != codes.Unauthenticated || status.Convert(err).Message() != "no: 100% ü" {
		t.Errorf("got %v", err)
	}
}

func TestUnknownMethodIsUnimplemented(t *testing.T) {
	var got []byte
	if err := openGRPCStream(t, ours(t, nil), "/test.Service/Other").RecvMsg(&got); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestTooLargeMessageIsRefused(t *testing.T) {
	address := ours(t, func(s *ServerStream) error { _, err := s.Next(); return err })
	s := openGRPCStream(t, address, method)
	large := make([]byte, most+1)
	_ = s.SendMsg(&large)
	var got []byte
	if err := s.RecvMsg(&got); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestIncompleteMessageIsAnError(t *testing.T) {
	begun := make(chan struct{})
	address := ours(t, func(s *ServerStream) error {
		if err := errors.Join(s.BeginMessage(100000), s.WritePiece(pieces(make([]byte, 50000)))); err != nil {
			t.Error(err)
		}
		<-begun
		return nil
	})
	s := openGRPCStream(t, address, method)
	close(begun)
	var got []byte
	if err := s.RecvMsg(&got); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("it was taken: %d bytes, %v", len(got), err)
	}
	s2 := talk(t, client(t, address))
	if _, err := readWhole(s2.Messages); status.Code(err) != codes.Internal {
		t.Errorf("our client took it with %v", err)
	}
}

func TestHandlerEndsStreamOfBlockedClient(t *testing.T) {
	sent := make(chan error, 1)
	returned := make(chan struct{})
	address := ours(t, func(s *ServerStream) error {
		stuck := make(chan struct{})
		go func() {
			close(stuck)
			var err error
			for err == nil {
				err = s.Send(pieces(make([]byte, 1<<20)), false)
			}
			sent <- err
		}()
		<-stuck
		close(returned)
		return status.Error(codes.Aborted, "enough")
	})
	openGRPCStream(t, address, method)
	<-returned
	select {
	case err := <-sent:
		if err == nil {
			t.Error("sending ended without an error")
		}
	case <-time.After(patient):
		t.Fatal("sending goes on after the stream's end")
	}
}

func TestContextEndsStreamAtBothEnds(t *testing.T) {
	ended := make(chan error, 1)
	address, _ := startGRPCServer(t, func(s grpc.ServerStream) error {
		var b []byte
		_ = s.RecvMsg(&b)
		_ = s.SendMsg(&b)
		ended <- s.RecvMsg(&b)
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := client(t, address).Stream(ctx, method, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(pieces([]byte("x"))); err != nil {
		t.Fatal(err)
	}
	if _, err := readWhole(s.Messages); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := s.Next(); status.Code(err) != codes.Canceled {
		t.Errorf("our end: %v", err)
	}
	if err := <-ended; status.Code(err) != codes.Canceled {
		t.Errorf("the server's end: %v", err)
	}
}

func TestStoppedServerRefusesStreams(t *testing.T) {
	address, server := startGRPCServer(t, func(s grpc.ServerStream) error { <-s.Context().Done(); return nil })
	c := client(t, address)
	if !c.CanOpenStream() {
		t.Error("not usable at first")
	}
	server.GracefulStop()
	select {
	case <-c.Closed():
	case <-time.After(patient):
		t.Fatal("its connection stays")
	}
	if _, err := c.Stream(t.Context(), method, nil); status.Code(err) != codes.Unavailable || c.CanOpenStream() {
		t.Errorf("another stream: %v", err)
	}
}

func TestServerOfOtherProtocolIsReported(t *testing.T) {
	l := listen(t)
	web := &http.Server{Handler: http.NotFoundHandler()}
	var serving sync.WaitGroup
	serving.Go(func() { _ = web.Serve(l) })
	defer serving.Wait()
	defer func() { _ = web.Close() }()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	if _, err := NewClient(ctx, conn, "test", most); err == nil || !strings.Contains(err.Error(), "does not speak gRPC") {
		t.Errorf("got %v", err)
	}
}

// chopped returns bytes in pieces of three.
type chopped struct{ rest []byte }

func (c *chopped) take(least int) (pieces mem.BufferSlice, err error) {
	if len(c.rest) == 0 {
		return nil, io.EOF
	}
	for least = max(least, 1); least > 0 && len(c.rest) > 0; {
		n := min(3, len(c.rest))
		pieces, c.rest, least = append(pieces, mem.SliceBuffer(c.rest[:n])), c.rest[n:], least-n
	}
	return pieces, nil
}

// FuzzMessages: for any input, reading ends and returns no more bytes than there were.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 3, 'a', 'b', 'c'})
	f.Add([]byte{0, 255, 255, 255, 255, 'a'})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMessages(&chopped{data}, 1<<16, func(err error) error { return err })
		total := 0
		for {
			ready := m.HasNext()
			size, err := m.Next()
			if err != nil {
				if ready {
					t.Errorf("HasNext is true, but there is no message: %v", err)
				}
				return
			}
			b, err := m.ReadRest(nil)
			if err != nil {
				return
			}
			if b.Len() != size {
				t.Errorf("%d bytes of %d", b.Len(), size)
			}
			if total += size + prefixSize; total > len(data) {
				t.Fatalf("%d bytes of %d", total, len(data))
			}
			b.Free()
		}
	})
}
