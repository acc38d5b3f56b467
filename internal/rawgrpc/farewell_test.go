package rawgrpc

import (
	"log/slog"
	"net"
	"testing"

	"golang.org/x/net/http2"
)

func TestPeerThatDoesNotKeepToTheProtocolIsToldSo(t *testing.T) {
	faults := map[string]struct {
		fault func(p *peer) error
		code  http2.ErrCode
	}{
		"data of no stream": {func(p *peer) error { return p.WriteData(99, false, []byte("x")) }, http2.ErrCodeProtocol},
		"a window too wide": {func(p *peer) error { return p.WriteWindowUpdate(0, mostWindow) }, http2.ErrCodeFlowControl},
		"a frame too large": {func(p *peer) error { return p.WriteRawFrame(http2.FramePing, 0, 0, make([]byte, frameSize+1)) }, http2.ErrCodeFrameSize},
		"headers that are none": {func(p *peer) error {
			return p.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, http2.ErrCodeCompression},
	}
	for name, one := range faults {
		t.Run("a client with "+name, func(t *testing.T) {
			p := calling(t, func(s *ServerStream) error { <-s.Context().Done(); return nil })
			p.call(1)
			p.answered(1)
			p.isTold(one.fault, one.code, 1)
		})
		t.Run("a server with "+name, func(t *testing.T) {
			c, p := dialed(t)
			talk(t, c)
			p.until(http2.FrameHeaders)
			p.isTold(one.fault, one.code, 0)
			<-c.Gone()
		})
	}
}

// answered waits until the server has seen all that was said before.
func (p *peer) answered(id byte) {
	p.t.Helper()
	if err := p.WritePing(false, [8]byte{id}); err != nil {
		p.t.Fatal(err)
	}
	for {
		if f, _ := p.until(http2.FramePing); f.(*http2.PingFrame).IsAck() {
			return
		}
	}
}

// isTold does something wrong, and waits to be told what that was.
func (p *peer) isTold(fault func(*peer) error, code http2.ErrCode, last uint32) {
	p.t.Helper()
	if err := fault(p); err != nil {
		p.t.Fatal(err)
	}
	f, _ := p.until(http2.FrameGoAway)
	if got := f.(*http2.GoAwayFrame); got.ErrCode != code || got.LastStreamID != last {
		p.t.Errorf("told %v, %q, last stream %d; want %v, %d", got.ErrCode, got.DebugData(), got.LastStreamID, code, last)
	}
}

// A peer that does not read is not waited for.
func TestPeerThatDoesNotListenIsLeftAllTheSame(t *testing.T) {
	here, there := net.Pipe() // on which a write waits for its reader
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
