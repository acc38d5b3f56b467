package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// maxStreams limits the streams of a connection.
	maxStreams = 100
	// acceptAgain is the delay after a failed Accept, for example because of too many open files.
	acceptAgain = 50 * time.Millisecond
)

// Handler serves one stream. Its result is the stream's status. Goroutines that it started may use the stream
// afterwards without effect.
type Handler func(*ServerStream) error

// Server serves streams. Serve runs it until Stop.
type Server struct {
	// Admit, if set, is called for each stream before its handler, with the connection's context and a function that
	// returns the values of a request header. An error refuses the stream and is its status. Set it before Serve. It
	// must not block.
	Admit func(ctx context.Context, header func(name string) []string) error

	methods     map[string]Handler
	most        int
	connContext func(context.Context, net.Conn) context.Context
	log         *slog.Logger
	serving     sync.WaitGroup
	stopped     chan struct{}
	stop        sync.Once

	mu       sync.Mutex
	listener net.Listener
	links    map[*rawConn]struct{}
}

// NewServer returns a server for the methods, which are named "/service/method". most limits the size of received
// messages in bytes. connContext returns the base context of a connection's streams.
func NewServer(methods map[string]Handler, most int, connContext func(context.Context, net.Conn) context.Context, log *slog.Logger) *Server {
	if connContext == nil {
		connContext = func(ctx context.Context, _ net.Conn) context.Context { return ctx }
	}
	return &Server{
		methods: methods, most: most, connContext: connContext, log: log, stopped: make(chan struct{}), links: map[*rawConn]struct{}{},
	}
}

// Serve serves the listener's connections until Stop, and waits for all handlers. It returns nil after Stop.
func (s *Server) Serve(l net.Listener) error {
	defer s.serving.Wait()
	defer l.Close()
	s.mu.Lock()
	s.listener = l
	s.mu.Unlock()
	for !s.isStopped() {
		conn, err := l.Accept()
		var temporary interface{ Temporary() bool }
		switch {
		case err == nil:
			s.take(conn)
		case s.isStopped():
		case errors.As(err, &temporary) && temporary.Temporary():
			s.log.Warn("a connection could not be taken", "error", err)
			select {
			case <-s.stopped:
			case <-time.After(acceptAgain):
			}
		default:
			s.Stop()
			return err
		}
	}
	return nil
}

func (s *Server) isStopped() bool {
	select {
	case <-s.stopped:
		return true
	default:
		return false
	}
}

// Stop closes the listener and all connections.
func (s *Server) Stop() {
	s.stop.Do(func() { close(s.stopped) })
	s.mu.Lock()
	links := s.links
	s.links = nil
	if s.listener != nil {
		_ = s.listener.Close()
	}
	s.mu.Unlock()
	for l := range links {
		l.fail(errClosed)
	}
}

// take serves a connection in its own goroutine.
func (s *Server) take(conn net.Conn) {
	p := &serverSide{server: s}
	p.ctx, p.cancel = context.WithCancel(s.connContext(context.Background(), conn))
	p.link = newLink(conn, p)
	s.mu.Lock()
	if s.links != nil {
		s.links[p.link] = struct{}{}
	}
	stopped := s.links == nil
	s.mu.Unlock()
	if stopped {
		p.link.fail(errClosed)
		return
	}
	s.serving.Go(p.serve)
}

// serverSide is the server's part of a connection.
type serverSide struct {
	server   *Server
	link     *rawConn
	ctx      context.Context
	cancel   context.CancelFunc
	handlers int // number of running handlers; guarded by the connection's lock
}

func (p *serverSide) serve() {
	p.link.control(initialFrames(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: maxStreams}))
	greeting := make([]byte, len(http2.ClientPreface))
	_, err := io.ReadFull(p.link.in, greeting)
	if err == nil && string(greeting) != http2.ClientPreface {
		err = fmt.Errorf("%w: it begins with %q", errNotHTTP2, greeting)
	}
	if err == nil {
		err = p.link.read()
	}
	p.link.fail(err)
	p.server.log.Debug("a connection has ended", "reason", err)
}

func (p *serverSide) opened() {}

func (p *serverSide) goAway(*http2.GoAwayFrame) {}

func (p *serverSide) streamEnded(*stream) {}

func (p *serverSide) lastTaken() uint32 { return p.link.last }

func (p *serverSide) closed() {
	p.cancel()
	p.server.mu.Lock()
	defer p.server.mu.Unlock()
	delete(p.server.links, p.link)
}

// headers starts a stream, or ends the client's side of one.
func (p *serverSide) headers(f *http2.MetaHeadersFrame) error {
	l := p.link
	l.mu.Lock()
	if s := l.streams[f.StreamID]; s != nil || f.StreamID <= l.last || f.StreamID%2 == 0 {
		l.mu.Unlock()
		switch {
		case s != nil && f.StreamEnded():
			s.peerEnded(s.eof)
			return nil
		case s == nil && f.StreamID <= l.last && f.StreamID%2 == 1:
			return nil // of a stream that was reset
		}
		return http2.ConnectionError(http2.ErrCodeProtocol)
	}
	l.last = f.StreamID
	if f.Truncated || p.handlers >= maxStreams || l.err != nil {
		l.mu.Unlock()
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeRefusedStream}
	}
	p.handlers++
	s := p.newStream(f.StreamID)
	l.mu.Unlock()
	if f.StreamEnded() {
		s.peerEnded(s.eof)
	}
	handler := p.server.methods[f.PseudoValue("path")]
	if path := f.PseudoValue("path"); handler == nil || f.PseudoValue("method") != "POST" {
		handler = func(*ServerStream) error {
			return status.Errorf(codes.Unimplemented, "there is no method %s", path)
		}
	}
	if err := p.admit(f); err != nil {
		handler = func(*ServerStream) error { return err }
	}
	p.server.serving.Go(func() { s.serve(handler) })
	return nil
}

// admit calls the server's Admit for a new stream.
func (p *serverSide) admit(f *http2.MetaHeadersFrame) error {
	if p.server.Admit == nil {
		return nil
	}
	return p.server.Admit(p.ctx, func(name string) (values []string) {
		for _, field := range f.RegularFields() {
			if field.Name == name {
				values = append(values, field.Value)
			}
		}
		return values
	})
}

// newStream creates a stream; the connection's lock is held.
func (p *serverSide) newStream(id uint32) *ServerStream {
	s := &ServerStream{stream: newStream(p.link, id, io.EOF), side: p}
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	s.Messages = newMessages(&s.in, p.server.most, s.receiveError)
	s.in.broken, s.open = s.cancel, true
	return s
}

// ServerStream is a bidirectional stream of messages. One goroutine may receive while others send.
type ServerStream struct {
	*stream
	*Messages // messages of the client
	side      *serverSide
	ctx       context.Context
	cancel    context.CancelFunc
	// answered: the response headers were sent; guarded by the connection's lock.
	answered bool
}

func (s *ServerStream) serve(handler Handler) {
	defer func() {
		s.link.mu.Lock()
		s.side.handlers--
		s.link.mu.Unlock()
	}()
	s.finish(handler(s))
}

// Context returns the stream's context, which ends with the stream.
func (s *ServerStream) Context() context.Context { return s.ctx }

func (s *ServerStream) receiveError(err error) error {
	if err == io.EOF {
		return io.EOF
	}
	return failure(s.ctx, err)
}

// Send sends a message. If more is set, it may stay in the queue until the next Send or Flush.
func (s *ServerStream) Send(data mem.BufferSlice, more bool) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.beginMessage(data.Len()); err != nil {
		return err
	}
	return s.sendError(s.send(data, more))
}

// Flush sends queued messages.
func (s *ServerStream) Flush() error {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	s.link.flush()
	return s.sendError(s.over)
}

// BeginMessage starts a message of size bytes, which WritePiece then has to complete. A stream that ends before is
// reset, so that no client treats the part as the message.
func (s *ServerStream) BeginMessage(size int) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.beginMessage(size)
}

// WritePiece sends the next piece of the message.
func (s *ServerStream) WritePiece(data mem.BufferSlice) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.sendError(s.send(data, s.missing > data.Len()))
}

// beginMessage starts a message; the caller holds sending.
func (s *ServerStream) beginMessage(size int) error {
	s.link.mu.Lock()
	defer s.link.mu.Unlock()
	if s.over == nil && !s.answered {
		s.answered = true
		s.link.headers(s.id, answerFields, false)
	}
	s.missing = prefixSize + size
	return s.sendError(s.add(appendPrefix(nil, size)))
}

var answerFields = []hpack.HeaderField{{Name: ":status", Value: "200"}, {Name: kindHeader, Value: contentType}}

func (s *ServerStream) sendError(err error) error {
	if err != nil {
		err = failure(s.ctx, err)
	}
	return err
}

// finish ends the stream with a status, or resets it if a message is incomplete.
func (s *ServerStream) finish(err error) {
	defer s.cancel()
	defer s.in.discard(errClosed)
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.over != nil:
		return
	case s.missing > 0:
		l.out = append(l.out, frameOf(http2.FrameRSTStream, 0, s.id, []byte{0, 0, 0, byte(http2.ErrCodeInternal)})...)
		l.drop(s.stream, errClosed)
	default:
		fields := statusFields(err)
		if !s.answered {
			fields = append(append([]hpack.HeaderField{}, answerFields...), fields...)
		}
		l.headers(s.id, fields, true)
		if !s.peerDone { // further data of the client is ignored
			l.out = append(l.out, frameOf(http2.FrameRSTStream, 0, s.id, []byte{0, 0, 0, byte(http2.ErrCodeNo)})...)
		}
		s.peerDone = true
		s.endSending()
	}
	l.flush()
}

// header returns the request headers of a client's stream.
func header(authority, method string, more map[string][]string) []hpack.HeaderField {
	fields := []hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":path", Value: method}, {Name: ":authority", Value: authority},
		{Name: kindHeader, Value: contentType}, {Name: "user-agent", Value: userAgent}, {Name: "te", Value: "trailers"},
	}
	for name, values := range more {
		for _, v := range values {
			name := strings.ToLower(name)
			fields = append(fields, hpack.HeaderField{Name: name, Value: v, Sensitive: name == "authorization"})
		}
	}
	return fields
}
