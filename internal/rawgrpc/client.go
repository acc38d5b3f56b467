package rawgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const (
	// userAgent is how clients show themselves.
	userAgent = "grpc-go-pilotfish"
	// lastStream is the last stream that is begun on a connection.
	lastStream = 1 << 30
)

var (
	errNotHTTP2 = errors.New("what answers there does not speak gRPC")
	errNoStatus = status.Error(codes.Internal, "the server ended the stream without a status")
	errHalf     = status.Error(codes.Internal, "the server ended the stream in the middle of a message")
)

// Client is one connection to a server. Its methods are safe for concurrent use.
type Client struct {
	link      *link
	authority string
	most      int
	settled   chan struct{} // closed when the server speaks HTTP/2
	gone      chan struct{}
	away      error // what the server said when it wanted no more streams; the link's lock guards it
}

// NewClient begins HTTP/2 on a connection, and waits until the server has answered in kind. The authority is the name under
// which the server is called; most bounds one message that is received. The connection is closed if it fails.
func NewClient(ctx context.Context, conn net.Conn, authority string, most int) (*Client, error) {
	c := &Client{authority: authority, most: most, settled: make(chan struct{}), gone: make(chan struct{})}
	c.link = newLink(conn, c)
	c.link.control(append([]byte(http2.ClientPreface), beginning(http2.Setting{ID: http2.SettingEnablePush})...))
	go func() { _ = c.link.read() }()
	var err error
	select {
	case <-c.settled:
		return c, nil
	case <-c.gone:
		if err = c.link.why(); errors.Is(err, io.ErrUnexpectedEOF) {
			err = errNotHTTP2
		} else if !errors.Is(err, errNotHTTP2) {
			err = fmt.Errorf("%w: %w", errNotHTTP2, err)
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	_ = c.Close()
	return nil, err
}

func (c *Client) opened() { close(c.settled) }

func (c *Client) closed() { close(c.gone) }

func (c *Client) lastTaken() uint32 { return 0 }

// Close ends the connection and its streams.
func (c *Client) Close() error {
	c.link.fail(errClosed)
	return nil
}

// Gone is closed when the connection is.
func (c *Client) Gone() <-chan struct{} { return c.gone }

// Usable says whether the connection takes another stream.
func (c *Client) Usable() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.usable()
}

func (c *Client) usable() bool {
	l := c.link
	return l.err == nil && c.away == nil && l.last < lastStream && (!l.bounded || len(l.streams) < int(l.most))
}

// goAway lets the streams go on that the server knows of, and ends the others.
func (c *Client) goAway(f *http2.GoAwayFrame) {
	l := c.link
	l.mu.Lock()
	c.away = fmt.Errorf("the server ends the connection with HTTP/2's %v (%s)", f.ErrCode, f.DebugData())
	var unknown []*stream
	for id, s := range l.streams {
		if id > f.LastStreamID {
			unknown = append(unknown, s)
			l.drop(s, c.away)
		}
	}
	idle := len(l.streams) == 0
	l.mu.Unlock()
	for _, s := range unknown {
		s.in.end(c.away)
	}
	if idle {
		l.fail(c.away)
	}
}

// ended closes a connection that takes no more streams after its last one.
func (c *Client) ended(*stream) {
	if c.away != nil && c.link.err == nil && len(c.link.streams) == 0 {
		go c.link.fail(c.away)
	}
}

// headers begins or ends an answer.
func (c *Client) headers(f *http2.MetaHeadersFrame) error {
	l := c.link
	l.mu.Lock()
	s := l.streams[f.StreamID]
	known := f.StreamID%2 == 1 && f.StreamID <= l.last
	interim := strings.HasPrefix(f.PseudoValue("status"), "1")
	if s != nil && !interim {
		s.open = true
	}
	l.mu.Unlock()
	switch {
	case !known:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil
	case f.StreamEnded():
		c.serverEnded(s, verdict(f))
	case interim:
	default:
		if err := fromResponse(f.Fields); err != nil {
			l.reset(s.id, http2.ErrCodeCancel, err)
		}
	}
	return nil
}

// serverEnded ends a stream of which the server has said the last: what is still sent is of no use.
func (c *Client) serverEnded(s *stream, how error) {
	s.peerEnded(how)
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[s.id] == s {
		l.out = append(l.out, frameOf(http2.FrameRSTStream, 0, s.id, []byte{0, 0, 0, byte(http2.ErrCodeNo)})...)
		l.drop(s, errClosed)
		l.flush()
	}
}

// verdict is what trailers say of the stream.
func verdict(f *http2.MetaHeadersFrame) error {
	if err, ok := fromHeader(f.Fields); ok {
		if err == nil {
			return io.EOF
		}
		return err
	}
	if f.PseudoValue("status") != "" {
		if err := fromResponse(f.Fields); err != nil {
			return err
		}
	}
	return errNoStatus
}

// ClientStream is a stream of messages both ways. One goroutine may send while another one receives.
type ClientStream struct {
	*stream
	*Messages // what the server sends
	ctx       context.Context
	client    *Client
}

// Stream begins a stream, which ends with the context at the latest: then all that it needs is freed.
func (c *Client) Stream(ctx context.Context, method string, more metadata.MD) (*ClientStream, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.usable() {
		return nil, status.Error(codes.Unavailable, "the connection takes no more streams")
	}
	l.last += 2 - (l.last+1)%2
	s := &ClientStream{stream: newStream(l, l.last, errNoStatus), ctx: ctx, client: c}
	s.Messages = newMessages(&s.in, c.most, s.why)
	l.headers(s.id, header(c.authority, method, more), false)
	l.flush()
	context.AfterFunc(ctx, s.abandon)
	return s, nil
}

// abandon ends a stream of which nobody wants more.
func (s *ClientStream) abandon() {
	s.in.discard(s.ctx.Err())
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.streams[s.id] != s.stream {
		return
	}
	l.out = append(l.out, frameOf(http2.FrameRSTStream, 0, s.id, []byte{0, 0, 0, byte(http2.ErrCodeCancel)})...)
	l.drop(s.stream, s.ctx.Err())
	l.flush()
}

// why is what the server says at the end.
func (s *ClientStream) why(err error) error {
	switch {
	case err == io.EOF:
		return io.EOF
	case s.ctx.Err() == nil && err == io.ErrUnexpectedEOF && s.client.link.why() == nil:
		return errHalf
	}
	return failure(s.ctx, s.client.because(err))
}

// because tells what the server said before it closed the connection.
func (c *Client) because(err error) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if _, said := status.FromError(err); c.away != nil && !said && c.link.err != nil {
		return c.away
	}
	return err
}

// Arrived is how many bytes of the server's messages have come so far, of one that is not whole, too.
func (s *ClientStream) Arrived() int { return s.in.arrived() }

// Send sends a message, and returns when it was taken over. An error says only that the stream has ended: why is told to who
// receives.
func (s *ClientStream) Send(data mem.BufferSlice) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.send(mem.BufferSlice{mem.SliceBuffer(appendPrefix(nil, data.Len()))}, true); err != nil {
		return err
	}
	return s.send(data, false)
}

// CloseSend says that nothing more will be sent.
func (s *ClientStream) CloseSend() {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.over == nil {
		l.out = appendHead(l.out, 0, http2.FrameData, http2.FlagDataEndStream, s.id)
		l.flush()
		s.endSending()
	}
}
