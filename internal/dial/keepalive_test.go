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

// freezableListener accepts connections that discard the server's output once frozen is closed. They still read.
type freezableListener struct {
	net.Listener
	frozen chan struct{}
}

func (f *freezableListener) Accept() (net.Conn, error) {
	conn, err := f.Listener.Accept()
	return &freezableConn{conn, f.frozen}, err
}

type freezableConn struct {
	net.Conn
	frozen chan struct{}
}

func (f *freezableConn) Write(b []byte) (int, error) {
	select {
	case <-f.frozen:
		return len(b), nil
	default:
		return f.Conn.Write(b)
	}
}

func serveGRPC(t *testing.T) *freezableListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &freezableListener{Listener: l, frozen: make(chan struct{})}
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Millisecond, PermitWithoutStream: true}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(f) })
	t.Cleanup(func() { server.Stop(); serving.Wait() })
	return f
}

func connectTo(t *testing.T, address string, p *Keepalive) *grpc.ClientConn {
	t.Helper()
	p.SetInUse(true)
	conn, err := Server{Plaintext: true, Keepalive: p}.Connect(t.Context(), address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func waitDisconnected(t *testing.T, conn *grpc.ClientConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatal("the frozen server was not detected")
	}
}

func TestFrozenServerIsDetected(t *testing.T) {
	l := serveGRPC(t)
	conn := connectTo(t, l.Addr().String(), &Keepalive{Interval: 50 * time.Millisecond, Timeout: 3 * time.Second})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // 20 intervals
	defer cancel()
	if conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Fatalf("a server that answers was considered dead: %v", conn.GetState())
	}
	close(l.frozen)
	waitDisconnected(t, conn)
}

func TestProbeDetectsFrozenServerEarlier(t *testing.T) {
	l := serveGRPC(t)
	p := &Keepalive{Interval: time.Second, Timeout: 20 * time.Millisecond}
	start := time.Now()
	conn := connectTo(t, l.Addr().String(), p)
	close(l.frozen)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			p.Probe()
			sleepFor(ctx, 5*time.Millisecond)
		}
	}()
	waitDisconnected(t, conn)
	if elapsed := time.Since(start); elapsed < p.minPingInterval() {
		t.Errorf("pinged after %v, before the minimum interval of %v", elapsed, p.minPingInterval())
	}
}

func sleepFor(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// A server that sends its own pings in time receives none, and OnActivity is called after each silence.
func TestServerThatPingsIsNotPinged(t *testing.T) {
	near, far := net.Pipe()
	activity := make(chan struct{}, 100)
	p := &Keepalive{Interval: 2 * time.Second, Timeout: 20 * time.Second, OnActivity: func() { activity <- struct{}{} }}
	p.SetInUse(true)
	conn := p.wrapConn(near)
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
	pinged := make(chan http2.Frame, 1)
	go func() {
		if f, err := framer.ReadFrame(); err == nil {
			pinged <- f
		}
	}()
	for range 3 {
		sleepFor(t.Context(), 1200*time.Millisecond) // the silence under test, not a wait
		if err := http2.NewFramer(far, nil).WritePing(false, [8]byte{}); err != nil {
			t.Fatal(err)
		}
		<-activity
	}
	select {
	case f := <-pinged:
		t.Errorf("the server received %v", f)
	default:
	}
}

func TestReadReportsUnresponsiveServer(t *testing.T) {
	near, far := net.Pipe()
	defer func() { _ = far.Close() }()
	p := &Keepalive{Interval: 10 * time.Millisecond, Timeout: 10 * time.Millisecond}
	p.SetInUse(true)
	conn := p.wrapConn(near)
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read: %v", err)
	}
}

// Pings are sent between frames, however the client splits its writes, and never inside a header block.
func TestPingsAreSentBetweenFrames(t *testing.T) {
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
	for _, maxChunk := range []int{1, 3, 9, 40, 1000, text.Len()} {
		got := writeChunks(t, text.Bytes(), maxChunk)
		if !bytes.HasPrefix(got, []byte(http2.ClientPreface)) {
			t.Fatalf("the preface is incomplete")
		}
		read := http2.NewFramer(nil, bytes.NewReader(got[len(http2.ClientPreface):]))
		seen, pings := 0, 0
		for {
			frame, err := read.ReadFrame()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("chunks of up to %d bytes: %v", maxChunk, err)
			}
			if _, ok := frame.(*http2.PingFrame); ok {
				pings++
			} else {
				seen++
			}
		}
		if seen != frames || pings == 0 {
			t.Errorf("chunks of up to %d bytes: %d frames and %d pings, want %d and at least 1", maxChunk, seen, pings, frames)
		}
	}
}

// writeChunks writes text in chunks to a connection on which a ping is always queued, and returns what was sent.
func writeChunks(t *testing.T, text []byte, maxChunk int) []byte {
	t.Helper()
	out := &recordingConn{}
	c := &keepaliveConn{Conn: out}
	for len(text) > 0 {
		n := min(1+rand.N(maxChunk), len(text))
		c.pingQueued = true
		if _, err := c.Write(text[:n]); err != nil {
			t.Fatal(err)
		}
		text = text[n:]
	}
	return out.Bytes()
}

type recordingConn struct {
	net.Conn
	bytes.Buffer
}

func (s *recordingConn) Write(b []byte) (int, error) { return s.Buffer.Write(b) }
func (s *recordingConn) Read(b []byte) (int, error)  { return s.Buffer.Read(b) }
