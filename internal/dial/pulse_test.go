package dial

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
)

// freezer is a listener whose connections answer nothing any more once they are frozen, though they still read.
type freezer struct {
	net.Listener
	frozen chan struct{}
}

func (f *freezer) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	return &freezing{conn, f.frozen}, err
}

type freezing struct {
	net.Conn
	frozen chan struct{}
}

func (f *freezing) Write(b []byte) (int, error) {
	select {
	case <-f.frozen:
		return len(b), nil
	default:
		return f.Conn.Write(b)
	}
}

func serveGRPC(t *testing.T) *freezer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezer{Listener: l, frozen: make(chan struct{})}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(f) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return f
}

func connectTo(t *testing.T, address string, p *Pulse) *grpc.ClientConn {
	t.Helper()
	p.InUse(true)
	conn, err := Server{Plaintext: true, Pulse: p}.Connect(t.Context(), address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func awaitLoss(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatal("a server that does not answer any more was not noticed")
	}
}

func TestServerThatIsFrozenIsNoticed(t *testing.T) {
	l := serveGRPC(t)
	conn := connectTo(t, l.Addr().String(), &Pulse{Interval: 50 * time.Millisecond, Timeout: 3 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // twenty intervals
	defer cancel()
	if conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatalf("a server that answers was given up: %v", conn.GetState())
	}
	close(l.frozen)
	awaitLoss(t, conn)
}

func TestFrozenServerIsNoticedSoonerByWhoAsks(t *testing.T) {
	l := serveGRPC(t)
	p := &Pulse{Interval: time.Second, Timeout: 20 * time.Millisecond}
	began := time.Now()
	conn := connectTo(t, l.Addr().String(), p)
	close(l.frozen)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			p.Ask()
			sleepFor(ctx, 5*time.Millisecond)
		}
	}()
	awaitLoss(t, conn)
	if took := time.Since(began); took < p.gap() {
		t.Errorf("asked after %v, before the gap of %v was over", took, p.gap())
	}
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A server that sends pings of its own in time is never sent one, and the silences between are told.
func TestServerThatPingsIsNotAsked(t *testing.T) {
	near, far := net.Pipe()
	heard := make(chan struct{}, 100)
	p := &Pulse{Interval: 2 * time.Second, Timeout: 20 * time.Second, Heard: func() { heard <- struct{}{} }}
	p.InUse(true)
	conn := p.watch(near)
	defer func() { _ = conn.Close() }()
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	go func() {
		_, _ = conn.Write([]byte(http2.ClientPreface))
		_ = http2.NewFramer(conn, nil).WriteSettings()
	}()
	buf := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(far, buf); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(far, far)
	if _, err := framer.ReadFrame(); err != nil {
		t.Fatal(err)
	}
	unasked := make(chan http2.Frame, 1)
	go func() {
		if f, err := framer.ReadFrame(); err == nil {
			unasked <- f
		}
	}()
	for range 3 {
		sleepFor(t.Context(), 1200*time.Millisecond) // not to wait for something, but to be silent
		if err := http2.NewFramer(far, nil).WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
		<-heard
	}
	select {
	case f := <-unasked:
		t.Errorf("it was sent %v", f)
	default:
	}
}

func TestDeadServerIsToldByWhoReads(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	p := &Pulse{Interval: 10 * time.Millisecond, Timeout: 10 * time.Millisecond}
	p.InUse(true)
	conn := p.watch(near)
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("reading failed with %v", err)
	}
}

// Whatever pieces a client writes its frames in, pings stand between frames, and not between the two of one header.
func TestPingsStandBetweenFrames(t *testing.T) {
	var text bytes.Buffer
	text.WriteString(http2.ClientPreface)
	f := http2.NewFramer(&text, nil)
	frames := 1
	_ = f.WriteSettings()
	for range 50 {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, rand.N(300))})
		_ = f.WriteContinuation(1, false, make([]byte, rand.N(3)))
		_ = f.WriteContinuation(1, true, nil)
		_ = f.WriteData(1, false, make([]byte, rand.N(400)))
		frames += 4
	}
	for _, most := range []int{1, 3, 9, 40, 1000, text.Len()} {
		got := writeInPieces(t, text.Bytes(), most)
		if !bytes.HasPrefix(got, []byte(http2.ClientPreface)) {
			t.Fatalf("the preface is not whole")
		}
		read := http2.NewFramer(nil, bytes.NewReader(got[len(http2.ClientPreface):]))
		seen, pings := 0, 0
		for {
			frame, err := read.ReadFrame()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("pieces of up to %d bytes: %v", most, err)
			}
			if _, ok := frame.(*http2.PingFrame); ok {
				pings++
			} else {
				seen++
			}
		}
		if seen != frames || pings == 0 {
			t.Errorf("pieces of up to %d bytes: %d frames and %d pings, want %d and some", most, seen, pings, frames)
		}
	}
}

// writeInPieces writes a text through a connection to which a ping is owed all the time.
func writeInPieces(t *testing.T, text []byte, most int) []byte {
	t.Helper()
	out := &sink{}
	c := &pulsedConn{Conn: out}
	for len(text) > 0 {
		n := min(1+rand.N(most), len(text))
		c.owed = true
		if _, err := c.Write(text[:n]); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	return out.Bytes()
}

type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) { return s.Buffer.Write(b) }
func (s *sink) Read(b []byte) (int, error)  { return s.Buffer.Read(b) }
