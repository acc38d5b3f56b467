package rawgrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
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

// plain lets gRPC's own clients and servers carry bytes.
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

// theirs serves with gRPC's own server.
func theirs(t *testing.T, handler func(grpc.ServerStream) error) (address string, server *grpc.Server) {
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

// ours serves with this package's server.
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

// their is a stream of gRPC's own client.
func their(t *testing.T, address, method string) grpc.ClientStream {
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

func whole(m *Messages) ([]byte, error) {
	if _, err := m.Next(); err != nil {
		return nil, err
	}
	data, err := m.Rest(nil)
	if err != nil {
		return nil, err
	}
	defer data.Free()
	return data.Materialize(), nil
}

func pieces(b []byte) mem.BufferSlice { return mem.BufferSlice{mem.SliceBuffer(b)} }

var sizes = []int{0, 1, 300, 5000, 17000, 70000, 3 << 20, 2}

func TestMessagesOfAllSizesPassBothWaysWithAServerOfGRPCsOwn(t *testing.T) {
	address, _ := theirs(t, func(s grpc.ServerStream) error {
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
		if got, err := whole(s.Messages); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
		}
	}
	s.CloseSend()
	if _, err := s.Next(); err != io.EOF {
		t.Errorf("the end: %v", err)
	}
}

func TestMessagesOfAllSizesPassBothWaysWithAClientOfGRPCsOwn(t *testing.T) {
	address := ours(t, func(s *ServerStream) error {
		for {
			b, err := whole(s.Messages)
			if err == io.EOF {
				return status.Error(codes.DataLoss, "100% done, schön")
			}
			if err != nil {
				return err
			}
			if err := s.Send(pieces(b), s.Ready()); err != nil {
				return err
			}
		}
	})
	s := their(t, address, method)
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

func TestStatusOfAServerIsTold(t *testing.T) {
	address, _ := theirs(t, func(s grpc.ServerStream) error { return status.Error(codes.Unauthenticated, "no: 100% ü") })
	_, err := talk(t, client(t, address)).Next()
	if status.Code(err) != codes.Unauthenticated || status.Convert(err).Message() != "no: 100% ü" {
		t.Errorf("got %v", err)
	}
}

func TestUnknownMethodIsUnimplemented(t *testing.T) {
	var got []byte
	if err := their(t, ours(t, nil), "/test.Service/Other").RecvMsg(&got); status.Code(err) != codes.Unimplemented {
		t.Errorf("got %v", err)
	}
}

func TestMessageBeyondTheBoundIsRefused(t *testing.T) {
	address := ours(t, func(s *ServerStream) error { _, err := s.Next(); return err })
	s := their(t, address, method)
	large := make([]byte, most+1)
	_ = s.SendMsg(&large)
	var got []byte
	if err := s.RecvMsg(&got); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

func TestMessageThatIsNotCompletedIsNotTakenForOne(t *testing.T) {
	begun := make(chan struct{})
	address := ours(t, func(s *ServerStream) error {
		if err := errors.Join(s.Begin(100000), s.Continue(pieces(make([]byte, 50000)))); err != nil {
			t.Error(err)
		}
		<-begun
		return nil
	})
	s := their(t, address, method)
	close(begun)
	var got []byte
	if err := s.RecvMsg(&got); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("it was taken: %d bytes, %v", len(got), err)
	}
	s2 := talk(t, client(t, address))
	if _, err := whole(s2.Messages); status.Code(err) != codes.Internal {
		t.Errorf("our client took it with %v", err)
	}
}

func TestHandlerEndsAStreamOfAClientThatDoesNotRead(t *testing.T) {
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
	their(t, address, method)
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

func TestEndOfAContextEndsTheStreamAtBothEnds(t *testing.T) {
	ended := make(chan error, 1)
	address, _ := theirs(t, func(s grpc.ServerStream) error {
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
	if _, err := whole(s.Messages); err != nil {
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

func TestServerThatStopsTakesNoMoreStreams(t *testing.T) {
	address, server := theirs(t, func(s grpc.ServerStream) error { <-s.Context().Done(); return nil })
	c := client(t, address)
	if !c.Usable() {
		t.Error("not usable at first")
	}
	server.GracefulStop()
	select {
	case <-c.Gone():
	case <-time.After(patient):
		t.Fatal("its connection stays")
	}
	if _, err := c.Stream(t.Context(), method, nil); status.Code(err) != codes.Unavailable || c.Usable() {
		t.Errorf("another stream: %v", err)
	}
}

func TestServerOfAnotherProtocolIsTold(t *testing.T) {
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

// chopped gives bytes in pieces of three.
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

// FuzzMessages: whatever comes, reading ends, and gives no more than there was.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 3, 'a', 'b', 'c', 0, 0, 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 3, 'a', 'b', 'c'})
	f.Add([]byte{0, 255, 255, 255, 255, 'a'})
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMessages(&chopped{data}, 1<<16, func(err error) error { return err })
		total := 0
		for {
			ready := m.Ready()
			size, err := m.Next()
			if err != nil {
				if ready {
					t.Errorf("a message that was said to be there was not: %v", err)
				}
				return
			}
			b, err := m.Rest(nil)
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
