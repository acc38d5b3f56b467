package rawgrpc

import (
	"log/slog"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

func TestProtocolErrorIsAnsweredWithGoAway(t *testing.T) {
	faults := map[string]struct {
		fault func(p *peer) error
		code  http2.ErrCode
	}{
		"data of no stream": {func(p *peer) error { return p.WriteData(99, false, []byte("x")) }, http2.ErrCodeProtocol},
		"a window too wide": {func(p *peer) error { return p.WriteWindowUpdate(0, maxWindow) }, http2.ErrCodeFlowControl},
		"a frame too large": {func(p *peer) error { return p.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, frameSize+1)) }, http2.ErrCodeFrameSize},
		"headers that are none": {func(p *peer) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, http2.ErrCodeCompression},
	}
	for name, one := range faults {
		t.Run("a client with "+name, func(t *testing.T) {
			p := calling(t, func(s *ServerStream) error { <-s.Context().Done(); return nil })
			p.call(1)
			p.waitPing(1)
			p.expectGoAway(one.fault, one.code, 1)
		})
		t.Run("a server with "+name, func(t *testing.T) {
			c, p := dialed(t)
			talk(t, c)
			p.readUntil(http2.FrameHeaders)
			p.expectGoAway(one.fault, one.code, 0)
			<-c.Closed()
		})
	}
}

// waitPing waits until the server has processed all frames sent before.
func (p *peer) waitPing(id byte) {
	p.t.Helper()
	if err := p.WritePing(false, [8]byte{id}); err != nil {
		p.t.Fatal(err)
	}
	for {
		if f, _ := p.readUntil(http2.FramePing); f.(*http2.PingFrame).IsAck() {
			return
		}
	}
}

// expectGoAway violates the protocol and waits for GOAWAY.
func (p *peer) expectGoAway(fault func(*peer) error, code http2.ErrCode, last uint32) {
	p.t.Helper()
	if err := fault(p); err != nil {
		p.t.Fatal(err)
	}
	f, _ := p.readUntil(http2.FrameGoAway)
	if got := f.(*http2.GoAwayFrame); got.ErrCode != code || got.LastStreamID != last {
		p.t.Errorf("GOAWAY %v, %q, last stream %d; want %v, %d", got.ErrCode, got.DebugData(), got.LastStreamID, code, last)
	}
}

// The connection is closed even if the peer does not read.
func TestConnectionClosesIfPeerDoesNotReadGoAway(t *testing.T) {
	here, there := net.Pipe() // unbuffered: a write blocks until it is read
	defer there.Close()
	s := NewServer(nil, most, nil, slog.New(slog.DiscardHandler))
	s.take(here)
	if _, err := there.Write([]byte(http2.ClientPreface)); err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, there)
	_ = p.WriteSettings()
	_ = p.WriteData(99, false, nil)
	s.serving.Wait()
}
