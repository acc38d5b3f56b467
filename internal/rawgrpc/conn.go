package rawgrpc

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// window limits the unread data of a stream, and linkWindow the unreceived data of a connection.
	window     = 2 << 20
	linkWindow = 8 << 20
	// frameSize limits the size of received frames, and headerList that of a header block.
	frameSize  = 16 << 10
	headerList = 1 << 20
	// firstWindow is the initial flow-control window of HTTP/2.
	firstWindow = 64<<10 - 1
	maxWindow   = 1<<31 - 1
)

// errClosed is returned by operations on a stream that has ended.
var errClosed = errors.New("rawgrpc: the stream has ended")

// rawConn is an HTTP/2 connection of a client or a server. One goroutine reads. Another one writes while data is
// queued.
type rawConn struct {
	conn   net.Conn
	side   side
	in     *bufio.Reader
	framer *http2.Framer // of what is read
	// received is the number of bytes since the last WINDOW_UPDATE. It is used only by the reader.
	received int
	begun    bool // the peer's settings arrived

	mu sync.Mutex
	// moved is signalled when the queue has space, a window grows, or a stream ends.
	moved   *sync.Cond
	streams map[uint32]*stream
	err     error // why the connection has ended
	outgoing
}

// side is the part that differs between client and server. The reader calls it.
type side interface {
	// opened is called when the peer's first settings arrive.
	opened()
	// headers processes a header block.
	headers(*http2.MetaHeadersFrame) error
	// goAway processes the peer's GOAWAY.
	goAway(*http2.GoAwayFrame)
	// streamEnded is called when a stream has ended; the connection's lock is held.
	streamEnded(*stream)
	// closed is called when the connection has ended.
	closed()
	// lastTaken returns the highest stream id of the peer that was processed; the connection's lock is held.
	lastTaken() uint32
}

func newLink(conn net.Conn, s side) *rawConn {
	l := &rawConn{conn: conn, side: s, in: bufio.NewReader(conn), streams: map[uint32]*stream{}}
	l.moved = sync.NewCond(&l.mu)
	l.framer = http2.NewFramer(io.Discard, l.in)
	l.framer.SetReuseFrames()
	l.framer.SetMaxReadFrameSize(frameSize)
	l.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	l.framer.MaxHeaderListSize = headerList
	l.outgoing = outgoing{window: firstWindow, initial: firstWindow, frame: frameSize}
	l.encoder = hpack.NewEncoder(&l.block)
	return l
}

// read reads frames until the connection ends, and returns the reason.
func (l *rawConn) read() error {
	for {
		header, err := l.framer.ReadFrameHeader()
		switch {
		case err != nil:
		case !l.begun && header.Type != http2.FrameSettings:
			err = errNotHTTP2
		case header.Type == http2.FrameData && !header.Flags.Has(http2.FlagDataPadded):
			err = l.readData(header)
		default:
			err = l.readFrame(header)
		}
		if reset := (http2.StreamError{}); errors.As(err, &reset) {
			l.reset(reset.StreamID, reset.Code, reset)
			err = nil
		}
		if err == io.EOF { // streams end in disorder with the connection
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			l.sendGoAway(err)
			l.fail(err)
			return err
		}
	}
}

// readData reads the payload of a DATA frame directly into the buffer that is forwarded.
func (l *rawConn) readData(h http2.FrameHeader) error {
	s, err := l.receiver(h.StreamID)
	if err != nil {
		return err
	}
	if s == nil || h.Length == 0 {
		_, err = l.in.Discard(int(h.Length))
	} else {
		piece := newPiece(int(h.Length))
		if _, err = io.ReadFull(l.in, piece.ReadOnlyData()); err != nil {
			piece.Free()
			return err
		}
		err = s.in.put(piece)
	}
	if err != nil {
		return err
	}
	l.count(int(h.Length))
	if s != nil && h.Flags.Has(http2.FlagDataEndStream) {
		s.peerEnded(s.eof)
	}
	return nil
}

// receiver returns the stream of a DATA frame, or nil if it has ended.
func (l *rawConn) receiver(id uint32) (*stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id == 0 || id > l.last {
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	s := l.streams[id]
	if s != nil && !s.open {
		return nil, http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return s, nil
}

// count returns the window of the connection for n received bytes. Unread data is limited by the windows of the
// streams.
func (l *rawConn) count(n int) {
	if l.received += n; l.received >= linkWindow/4 {
		l.control(windowUpdate(0, l.received))
		l.received = 0
	}
}

func (l *rawConn) readFrame(h http2.FrameHeader) error {
	f, err := l.framer.ReadFrameForHeader(h)
	if err != nil {
		return err
	}
	switch f := f.(type) {
	case *http2.MetaHeadersFrame:
		return l.side.headers(f)
	case *http2.DataFrame:
		return l.takePadded(f)
	case *http2.SettingsFrame:
		return l.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			l.control(frameOf(http2.FramePing, http2.FlagPingAck, 0, f.Data[:]))
		}
	case *http2.WindowUpdateFrame:
		return l.widen(f.StreamID, int64(f.Increment))
	case *http2.RSTStreamFrame:
		l.peerReset(f)
	case *http2.GoAwayFrame:
		l.side.goAway(f)
	case *http2.PushPromiseFrame:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	return nil
}

func (l *rawConn) takePadded(f *http2.DataFrame) error {
	s, err := l.receiver(f.StreamID)
	if err != nil {
		return err
	}
	l.count(int(f.Length))
	if s == nil {
		return nil
	}
	if padding := int(f.Length) - len(f.Data()); padding > 0 {
		l.control(windowUpdate(f.StreamID, padding))
	}
	if len(f.Data()) > 0 {
		piece := newPiece(len(f.Data()))
		copy(piece.ReadOnlyData(), f.Data())
		err = s.in.put(piece)
	}
	if err == nil && f.StreamEnded() {
		s.peerEnded(s.eof)
	}
	return err
}

func (l *rawConn) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	l.mu.Lock()
	err := f.ForeachSetting(l.set)
	l.moved.Broadcast()
	l.mu.Unlock()
	if err != nil {
		return err
	}
	l.control(frameOf(http2.FrameSettings, http2.FlagSettingsAck, 0, nil))
	if !l.begun {
		l.begun = true
		l.side.opened()
	}
	return nil
}

// set applies a setting of the peer's; the lock is held.
func (l *rawConn) set(s http2.Setting) error {
	if err := s.Valid(); err != nil {
		return err
	}
	switch s.ID {
	case http2.SettingInitialWindowSize:
		more := int64(s.Val) - l.initial
		l.initial = int64(s.Val)
		for _, one := range l.streams {
			if one.window += more; one.window > maxWindow {
				return http2.ConnectionError(http2.ErrCodeFlowControl)
			}
		}
	case http2.SettingMaxFrameSize:
		l.frame = min(int(s.Val), maxFrame)
	case http2.SettingHeaderTableSize:
		l.encoder.SetMaxDynamicTableSizeLimit(s.Val)
	case http2.SettingMaxConcurrentStreams:
		l.most, l.bounded = s.Val, true
	}
	return nil
}

// widen increases the send window of a stream or of the connection.
func (l *rawConn) widen(id uint32, more int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.moved.Broadcast()
	if id == 0 {
		if l.window += more; l.window > maxWindow {
			return http2.ConnectionError(http2.ErrCodeFlowControl)
		}
		return nil
	}
	if s := l.streams[id]; s != nil {
		if s.window += more; s.window > maxWindow {
			return http2.StreamError{StreamID: id, Code: http2.ErrCodeFlowControl}
		}
	}
	return nil
}

// fail ends the connection and its streams.
func (l *rawConn) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	streams := l.streams
	l.streams = map[uint32]*stream{}
	for _, s := range streams {
		s.over = err
		l.side.streamEnded(s)
	}
	l.moved.Broadcast()
	l.mu.Unlock()
	_ = l.conn.Close()
	for _, s := range streams {
		s.in.end(err)
	}
	l.side.closed()
}

// closeReason returns why the connection has ended, or nil while it is open.
func (l *rawConn) closeReason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// windowUpdate returns a WINDOW_UPDATE frame.
func windowUpdate(id uint32, more int) []byte {
	return frameOf(http2.FrameWindowUpdate, 0, id, []byte{byte(more >> 24), byte(more >> 16), byte(more >> 8), byte(more)})
}

func frameOf(t http2.FrameType, flags http2.Flags, id uint32, payload []byte) []byte {
	return append(appendHead(nil, len(payload), t, flags, id), payload...)
}

func appendHead(b []byte, length int, t http2.FrameType, flags http2.Flags, id uint32) []byte {
	return append(b, byte(length>>16), byte(length>>8), byte(length), byte(t), byte(flags),
		byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
}

// initialFrames returns the frames that both sides send first.
func initialFrames(settings ...http2.Setting) []byte {
	var b bytes.Buffer
	f := http2.NewFramer(&b, nil)
	_ = f.WriteSettings(append(settings, http2.Setting{ID: http2.SettingInitialWindowSize, Val: window})...)
	_ = f.WriteWindowUpdate(0, linkWindow-firstWindow)
	return b.Bytes()
}
