package rawgrpc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// peer speaks HTTP/2 frame by frame.
type peer struct {
	t *testing.T
	net.Conn
	*http2.Framer
	block bytes.Buffer
	coder *hpack.Encoder
}

func newPeer(t *testing.T, conn net.Conn) *peer {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patient))
	p := &peer{t: t, Conn: conn, Framer: http2.NewFramer(conn, conn)}
	p.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	p.coder = hpack.NewEncoder(&p.block)
	return p
}

// greet exchanges the settings.
func (p *peer) greet(settings ...http2.Setting) {
	p.t.Helper()
	greeting := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(p.Conn, greeting); err != nil || string(greeting) != http2.ClientPreface {
		p.t.Fatalf("the client begins with %q, %v", greeting, err)
	}
	if err := p.WriteSettings(settings...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) headers(id uint32, end bool, pairs ...string) {
	p.t.Helper()
	p.block.Reset()
	for i := 0; i < len(pairs); i += 2 {
		_ = p.coder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	if err := p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) answer(id uint32) {
	p.headers(id, false, ":status", "200", "content-type", "application/grpc")
}

// readUntil reads frames up to one of the kind, and returns the amount of data in the frames before it.
func (p *peer) readUntil(kind http2.FrameType) (f http2.Frame, data int) {
	p.t.Helper()
	for {
		f, err := p.ReadFrame()
		if err != nil {
			p.t.Fatalf("waiting for %v: %v", kind, err)
		}
		if s, ok := f.(*http2.SettingsFrame); ok && s.IsAck() {
			continue
		}
		if f.Header().Type == kind {
			return f, data
		}
		if d, ok := f.(*http2.DataFrame); ok {
			data += len(d.Data())
		}
	}
}

// dialed returns a client and its peer.
func dialed(t *testing.T, settings ...http2.Setting) (*Client, *peer) {
	t.Helper()
	l := listen(t)
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, other)
	greeted := make(chan struct{})
	go func() { defer close(greeted); p.greet(settings...) }()
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	c, err := NewClient(ctx, conn, "test", most)
	if err != nil {
		t.Fatal(err)
	}
	<-greeted
	t.Cleanup(func() { _ = c.Close() })
	return c, p
}

// calling returns a peer of a server.
func calling(t *testing.T, handler Handler, settings ...http2.Setting) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", ours(t, handler))
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, conn)
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) call(id uint32) {
	p.headers(id, false, ":method", "POST", ":scheme", "http", ":path", method, ":authority", "x", "content-type", "application/grpc")
}

func TestPingIsAnsweredWhileDataIsUnread(t *testing.T) {
	c, p := dialed(t)
	s := talk(t, c)
	_ = s
	p.readUntil(http2.FrameHeaders)
	p.answer(1)
	for range window / (16 << 10) { // as much as it lets be sent
		if err := p.WriteData(1, false, make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.WritePing(false, [8]byte{'a', 'l', 'i', 'v', 'e'}); err != nil {
		t.Fatal(err)
	}
	for {
		f, _ := p.readUntil(http2.FramePing)
		if got := f.(*http2.PingFrame); got.IsAck() && string(got.Data[:5]) == "alive" {
			return
		}
	}
}

func TestFlowControlViolationClosesConnection(t *testing.T) {
	c, p := dialed(t)
	s := talk(t, c)
	p.readUntil(http2.FrameHeaders)
	p.answer(1)
	for range window/(16<<10) + 1 {
		if err := p.WriteData(1, false, make([]byte, 16<<10)); err != nil {
			break // the connection is closed already
		}
	}
	select {
	case <-c.Closed():
	case <-time.After(patient):
		t.Fatal("the connection stays")
	}
	s.in.discard(io.EOF)
}

func TestPeersWindowsAreObserved(t *testing.T) {
	sent := make(chan error, 1)
	p := calling(t, func(s *ServerStream) error {
		err := s.Send(pieces(make([]byte, 200000)), false)
		sent <- err
		return err
	}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000})
	p.call(1)
	total := func(want int) {
		t.Helper()
		for got := 0; got < want; {
			f, _ := p.readUntil(http2.FrameData)
			if got += len(f.(*http2.DataFrame).Data()); got > want {
				t.Fatalf("%d bytes came where %d were allowed", got, want)
			}
		}
		_ = p.WritePing(false, [8]byte{1})
		if _, more := p.readUntil(http2.FramePing); more > 0 {
			t.Fatalf("%d bytes came beyond those that were allowed", more)
		}
	}
	total(1000)
	_ = p.WriteWindowUpdate(1, 500)
	total(500)
	_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3000}) // 2000 more
	total(2000)
	_ = p.WriteWindowUpdate(1, 1<<20)
	total(firstWindow - 3500) // the connection's window is used up
	_ = p.WriteWindowUpdate(0, 1<<20)
	total(200000 + prefixSize - firstWindow)
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestKnownStreamsContinueAfterGoAway(t *testing.T) {
	c, p := dialed(t)
	known, unknown := talk(t, c), talk(t, c)
	p.readUntil(http2.FrameHeaders)
	p.readUntil(http2.FrameHeaders)
	_ = p.WriteGoAway(1, http2.ErrCodeEnhanceYourCalm, []byte("too_many_pings"))
	if _, err := unknown.Next(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream that the server does not know of ends with %v", err)
	}
	if c.CanOpenStream() {
		t.Error("more streams could be begun")
	}
	p.answer(1)
	_ = p.WriteData(1, false, append(appendPrefix(nil, 3), "abc"...))
	if got, err := readWhole(known.Messages); err != nil || string(got) != "abc" {
		t.Errorf("the other one got %q, %v", got, err)
	}
	_ = p.Close()
	if _, err := known.Next(); err == nil || !strings.Contains(err.Error(), "too_many_pings") {
		t.Errorf("the end of the connection is reported as %v", err)
	}
}

func TestConnectionLossIsNotAnOrderlyEnd(t *testing.T) {
	for name, before := range map[string][]byte{"between messages": nil, "in a prefix": {0, 0}, "in a message": append(appendPrefix(nil, 10), "half"...)} {
		t.Run(name, func(t *testing.T) {
			c, p := dialed(t)
			s := talk(t, c)
			p.readUntil(http2.FrameHeaders)
			p.answer(1)
			if before != nil {
				_ = p.WriteData(1, false, before)
			}
			_ = p.Close()
			if _, err := readWhole(s.Messages); err == nil || err == io.EOF || status.Code(err) != codes.Unavailable {
				t.Errorf("it ends with %v", err)
			}
		})
	}
}

func TestEndWithoutStatusIsNotOrderly(t *testing.T) {
	c, p := dialed(t)
	s := talk(t, c)
	p.readUntil(http2.FrameHeaders)
	p.answer(1)
	_ = p.WriteData(1, true, append(appendPrefix(nil, 3), "abc"...))
	if got, err := readWhole(s.Messages); err != nil || string(got) != "abc" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := s.Next(); err == io.EOF || status.Code(err) != codes.Internal {
		t.Errorf("it ends with %v", err)
	}
}

func TestNonGRPCAnswerIsReported(t *testing.T) {
	for kind, code := range map[string]codes.Code{"503": codes.Unavailable, "401": codes.Unauthenticated, "200": codes.Unknown} {
		c, p := dialed(t)
		s := talk(t, c)
		p.readUntil(http2.FrameHeaders)
		p.headers(1, false, ":status", kind, "content-type", "text/html")
		if _, err := s.Next(); status.Code(err) != code {
			t.Errorf("HTTP status %s is reported as %v", kind, err)
		}
	}
}

func TestLongHeadersAreSplit(t *testing.T) {
	c, p := dialed(t)
	token := strings.Repeat("0123456789abcdef", 5000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if _, err := c.Stream(ctx, method, map[string][]string{"authorization": {token}}); err != nil {
		t.Fatal(err)
	}
	p.MaxHeaderListSize = 1 << 20
	f, _ := p.readUntil(http2.FrameHeaders)
	if got := value(f.(*http2.MetaHeadersFrame).Fields, "authorization"); got != token {
		t.Errorf("%d bytes of %d came", len(got), len(token))
	}
}

func TestResetEndsHandlersContext(t *testing.T) {
	ended := make(chan struct{})
	p := calling(t, func(s *ServerStream) error {
		<-s.Context().Done()
		if err := s.Send(pieces([]byte("x")), false); err == nil {
			t.Error("something could be sent")
		}
		close(ended)
		return nil
	})
	p.call(1)
	_ = p.WriteRSTStream(1, http2.ErrCodeCancel)
	select {
	case <-ended:
	case <-time.After(patient):
		t.Fatal("the handler goes on")
	}
}

func TestTooManyStreamsAreRefused(t *testing.T) {
	p := calling(t, func(s *ServerStream) error { <-s.Context().Done(); return nil })
	for i := range maxStreams + 1 {
		p.call(uint32(2*i + 1))
	}
	f, _ := p.readUntil(http2.FrameRSTStream)
	if got := f.(*http2.RSTStreamFrame); got.ErrCode != http2.ErrCodeRefusedStream || got.StreamID != 2*maxStreams+1 {
		t.Errorf("got %v", got)
	}
}

func TestSingleByteFramesUseLittleMemory(t *testing.T) {
	var b inbox
	b.init(func(int) {})
	for range 100000 {
		if err := b.put(mem.SliceBuffer{1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(b.queue); n > 100000/joined+1 {
		t.Errorf("100,000 bytes are held in %d pieces", n)
	}
	if got, err := b.take(100000); err != nil || got.Len() != 100000 {
		t.Errorf("%d bytes were taken, %v", got.Len(), err)
	}
}

func TestAnswersToPeerThatDoesNotReadAreLimited(t *testing.T) {
	p := calling(t, func(s *ServerStream) error { return nil })
	_ = p.SetDeadline(time.Now().Add(patient))
	for {
		if err := p.WritePing(false, [8]byte{}); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the server neither reads on nor ends the connection")
			}
			return
		}
	}
}

// scripted is a connection whose peer sends the given bytes and closes it.
type scripted struct {
	net.Conn
	in *bytes.Reader
}

func (s scripted) Read(b []byte) (int, error)  { return s.in.Read(b) }
func (s scripted) Write(b []byte) (int, error) { return len(b), nil }
func (s scripted) Close() error                { return nil }

func (s scripted) SetWriteDeadline(time.Time) error { return nil }

// seeds adds valid conversations to the corpus.
func seeds(f *testing.F) {
	for _, who := range []string{":path", ":status"} {
		var b, block bytes.Buffer
		e := hpack.NewEncoder(&block)
		for _, pair := range [][2]string{{":status", "200"}, {":method", "POST"}, {":path", method}, {":scheme", "http"}, {"content-type", "application/grpc"}} {
			if pair[0] == ":status" == (who == ":status") || pair[0] == "content-type" {
				_ = e.WriteField(hpack.HeaderField{Name: pair[0], Value: pair[1]})
			}
		}
		fr := http2.NewFramer(&b, nil)
		_ = fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100})
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = fr.WriteData(1, false, append(appendPrefix(nil, 3), "abc"...))
		_ = fr.WriteDataPadded(1, false, append(appendPrefix(nil, 1), 'x'), make([]byte, 5))
		_ = fr.WriteWindowUpdate(1, 1000)
		_ = fr.WritePing(false, [8]byte{})
		_ = fr.WriteGoAway(1, http2.ErrCodeNo, nil)
		_ = fr.WriteRSTStream(1, http2.ErrCodeCancel)
		f.Add(b.Bytes())
	}
}

// FuzzServer: any input of a client ends its connection without a panic.
func FuzzServer(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := NewServer(map[string]Handler{method: func(s *ServerStream) error {
			for {
				b, err := readWhole(s.Messages)
				if err != nil {
					return err
				}
				if err := s.Send(pieces(b), s.HasNext()); err != nil {
					return err
				}
			}
		}}, 1<<16, nil, slog.New(slog.DiscardHandler))
		s.take(scripted{in: bytes.NewReader(append([]byte(http2.ClientPreface), data...))})
		s.serving.Wait()
		s.Stop()
	})
}

// FuzzClient: for any input of a server, streams end with the connection, and orderly only if the server ended them so.
func FuzzClient(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &Client{authority: "x", most: 1 << 16, settled: make(chan struct{}), gone: make(chan struct{})}
		c.link = newLink(scripted{in: bytes.NewReader(data)}, c)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s, err := c.Stream(ctx, method, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.Send(pieces(make([]byte, 100)))
		_ = c.link.read()
		for err == nil {
			_, err = readWhole(s.Messages)
		}
		if err == io.EOF && !bytes.Contains(data, []byte("grpc-status")) && !huffman(data) {
			t.Error("a stream ended in order without a status")
		}
	})
}

// huffman reports whether the name of the status header may be Huffman-encoded.
func huffman(data []byte) bool {
	return bytes.Contains(data, hpack.AppendHuffmanString(nil, "grpc-status"))
}
