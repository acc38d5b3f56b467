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
	// userAgent is the user-agent header of clients.
	userAgent = "grpc-go-pilotfish"
	// lastStream is the highest stream id that is used on a connection.
	lastStream = 1 << 30
)

var (
	errNotHTTP2 = errors.New("the server does not speak gRPC")
	errNoStatus = status.Error(codes.Internal, "the server ended the stream without a status")
	errHalf     = status.Error(codes.Internal, "the server ended the stream in the middle of a message")
)

// Client is a connection to a server. Its methods are safe for concurrent use.
type Client struct {
	link      *rawConn
	authority string
	most      int
	settled   chan struct{} // closed when the server speaks HTTP/2
	gone      chan struct{}
	away      error // the server's GOAWAY; guarded by the connection's lock
}

// NewClient starts HTTP/2 on conn and waits for the server's settings. authority is the :authority of requests, and
// most the size limit of received messages in bytes. On failure it closes conn.
func NewClient(ctx context.Context, conn net.Conn, authority string, most int) (*Client, error) {
	c := &Client{authority: authority, most: most, settled: make(chan struct{}), gone: make(chan struct{})}
	c.link = newLink(conn, c)
	c.link.control(append([]byte(http2.ClientPreface), initialFrames(http2.Setting{ID: http2.SettingEnablePush})...))
	go func() { _ = c.link.read() }()
	var err error
	select {
	case <-c.settled:
		return c, nil
	case <-c.gone:
		if err = c.link.closeReason(); errors.Is(err, io.ErrUnexpectedEOF) {
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

// Close closes the connection and ends its streams.
func (c *Client) Close() error {
	c.link.fail(errClosed)
	return nil
}

// Closed returns a channel that is closed when the connection ends.
func (c *Client) Closed() <-chan struct{} { return c.gone }

// CanOpenStream reports whether another stream can be opened on the connection.
func (c *Client) CanOpenStream() bool {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	return c.canOpenStream()
}

func (c *Client) canOpenStream() bool {
	l := c.link
	return l.err == nil && c.away == nil && l.last < lastStream && (!l.bounded || len(l.streams) < int(l.most))
}

// goAway processes GOAWAY: streams that the server has processed continue, all others end.
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

// streamEnded closes the connection after its last stream if the server sent GOAWAY.
func (c *Client) streamEnded(*stream) {
	if c.away != nil && c.link.err == nil && len(c.link.streams) == 0 {
		go c.link.fail(c.away)
	}
}

// headers processes the headers or trailers of a response.
func (c *Client) headers(f *http2.MetaHeadersFrame) error {
	l := c.link
	l.mu.Lock()
	s := l.streams[f.StreamID]
	known := f.StreamID%2 == 1 && f.StreamID <= l.last
	interim := strings.HasPrefix(f.PseudoValue("status"), "1")
	if s != nil && !interim {
		if !s.open {
			s.fields = f.Fields
			close(s.begun)
		}
		s.open = true
	}
	l.mu.Unlock()
	switch {
	case !known:
		return http2.ConnectionError(http2.ErrCodeProtocol)
	case s == nil:
		return nil
	case f.StreamEnded():
		c.serverEnded(s, trailerError(f))
	case interim:
	default:
		if err := fromResponse(f.Fields); err != nil {
			l.reset(s.id, http2.ErrCodeCancel, err)
		}
	}
	return nil
}

// serverEnded ends a stream after the server's trailers. Data that is still queued is discarded.
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

// trailerError returns the status in the trailers as an error, or io.EOF for OK.
func trailerError(f *http2.MetaHeadersFrame) error {
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

// ClientStream is a bidirectional stream of messages. One goroutine may send while another one receives.
type ClientStream struct {
	*stream
	*Messages // messages of the server
	ctx       context.Context
	client    *Client
}

// Stream opens a stream. It ends at the latest when ctx ends, which frees its resources.
func (c *Client) Stream(ctx context.Context, method string, more metadata.MD) (*ClientStream, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	if !c.canOpenStream() {
		return nil, status.Error(codes.Unavailable, "the connection takes no more streams")
	}
	l.last += 2 - (l.last+1)%2
	s := &ClientStream{stream: newStream(l, l.last, errNoStatus), ctx: ctx, client: c}
	s.begun = make(chan struct{})
	s.Messages = newMessages(&s.in, c.most, s.receiveError)
	l.headers(s.id, header(c.authority, method, more), false)
	l.flush()
	context.AfterFunc(ctx, s.abandon)
	return s, nil
}

// abandon resets the stream when its context ends.
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

// receiveError returns the error with which receiving ends.
func (s *ClientStream) receiveError(err error) error {
	switch {
	case err == io.EOF:
		return io.EOF
	case s.ctx.Err() == nil && err == io.ErrUnexpectedEOF && s.client.link.closeReason() == nil:
		return errHalf
	}
	return failure(s.ctx, s.client.connectionError(err))
}

// connectionError returns the server's GOAWAY, if there is one, instead of the error of the closed connection.
func (c *Client) connectionError(err error) error {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if _, ok := status.FromError(err); c.away != nil && !ok && c.link.err != nil {
		return c.away
	}
	return err
}

// HeaderReceived returns a channel that is closed when the server's headers arrive. It is not closed if the stream ends
// without them.
func (s *ClientStream) HeaderReceived() <-chan struct{} { return s.begun }

// Header returns the values of a header field of the server. It returns nil before HeaderReceived is closed.
func (s *ClientStream) Header(name string) (values []string) {
	select {
	case <-s.begun:
	default:
		return nil
	}
	for _, field := range s.fields {
		if field.Name == name {
			values = append(values, field.Value)
		}
	}
	return values
}

// ReceivedBytes returns the number of message bytes received so far, including those of an incomplete message.
func (s *ClientStream) ReceivedBytes() int { return s.in.arrived() }

// Send sends a message and returns when it is queued. An error reports only that the stream has ended; receiving
// returns the cause.
func (s *ClientStream) Send(data mem.BufferSlice) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	if err := s.send(mem.BufferSlice{mem.SliceBuffer(appendPrefix(nil, data.Len()))}, true); err != nil {
		return err
	}
	return s.send(data, false)
}

// CloseSend ends the client's side of the stream.
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
