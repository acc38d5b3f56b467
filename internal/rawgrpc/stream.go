package rawgrpc

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

// stream is the common part of client and server streams.
type stream struct {
	link *rawConn
	id   uint32
	in   inbox
	// eof is the error that the end of the peer's data means.
	eof error
	// sending is held while a message is sent.
	sending sync.Mutex

	// The connection's lock guards the following fields.
	window   int64 // send window
	open     bool  // the peer's headers arrived
	missing  int   // bytes of the started message that are not yet sent
	over     error // why nothing more is sent
	done     bool  // this side ended the stream
	peerDone bool  // the peer ended the stream

	// fields are the peer's headers. They do not change after begun is closed. Only clients use them.
	begun  chan struct{}
	fields []hpack.HeaderField
}

// newStream creates a stream; the connection's lock is held.
func newStream(l *rawConn, id uint32, eof error) *stream {
	s := &stream{link: l, id: id, eof: eof, window: l.initial}
	l.streams[id] = s
	s.in.init(s.grant)
	return s
}

// grant sends a WINDOW_UPDATE of the stream.
func (s *stream) grant(more int) {
	l := s.link
	l.mu.Lock()
	wanted := !s.peerDone && l.streams[s.id] == s
	l.mu.Unlock()
	if wanted {
		l.control(windowUpdate(s.id, more))
	}
}

// peerEnded records that the peer ended the stream, and its error.
func (s *stream) peerEnded(err error) {
	s.in.end(err)
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	s.peerDone = true
	if s.done {
		l.remove(s)
	}
}

// endSending ends this side of the stream; the lock is held.
func (s *stream) endSending() {
	s.done = true
	if s.over == nil {
		s.over = errClosed
	}
	if s.peerDone {
		s.link.remove(s)
	}
	s.link.moved.Broadcast()
}

// remove removes a stream; the lock is held.
func (l *rawConn) remove(s *stream) {
	if l.streams[s.id] == s {
		delete(l.streams, s.id)
		l.side.streamEnded(s)
	}
}

// reset ends a stream with an error and sends RST_STREAM.
func (l *rawConn) reset(id uint32, code http2.ErrCode, why error) {
	l.mu.Lock()
	s := l.streams[id]
	if s != nil {
		l.drop(s, why)
	}
	l.mu.Unlock()
	if s != nil {
		s.in.end(why)
	}
	l.control(frameOf(http2.FrameRSTStream, 0, id, []byte{0, 0, 0, byte(code)}))
}

// drop removes a stream that was not ended by both sides; the lock is held.
func (l *rawConn) drop(s *stream, why error) {
	if s.over == nil {
		s.over = why
	}
	l.remove(s)
	l.moved.Broadcast()
}

func (l *rawConn) peerReset(f *http2.RSTStreamFrame) {
	why := http2.StreamError{StreamID: f.StreamID, Code: f.ErrCode}
	l.mu.Lock()
	s := l.streams[f.StreamID]
	if s != nil {
		l.drop(s, why)
	}
	l.mu.Unlock()
	if s != nil {
		s.in.end(why)
	}
}

// joined limits the size of buffers into which small pieces are joined.
const joined = 4 << 10

// inbox queues the received data of a stream.
type inbox struct {
	grant  func(int)
	broken func() // called when the stream ends with an error; may be nil

	mu     sync.Mutex
	filled *sync.Cond
	queue  mem.BufferSlice
	size   int
	total  int // bytes received so far
	want   int // bytes that the reader waits for
	left   int // receive window
	taken  int // bytes read since the last WINDOW_UPDATE
	err    error
}

func (b *inbox) init(grant func(int)) {
	b.grant, b.left = grant, window
	b.filled = sync.NewCond(&b.mu)
}

var errFlow = errors.New("the peer sends more than it may")

// put queues a piece and takes ownership of it.
func (b *inbox) put(piece mem.Buffer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := piece.Len()
	b.total += n
	if b.left -= n; b.left < 0 {
		piece.Free()
		return errFlow
	}
	if b.err != nil {
		piece.Free()
		return nil
	}
	b.append(piece)
	if b.size += n; b.size >= b.want {
		b.filled.Signal()
	}
	return nil
}

// append queues a piece. It joins small pieces, so that frames of one byte do not use more memory than larger ones.
func (b *inbox) append(piece mem.Buffer) {
	if n := len(b.queue); n > 0 {
		last, small := b.queue[n-1].(mem.SliceBuffer)
		if small && len(last)+piece.Len() <= joined {
			b.queue[n-1] = append(last, piece.ReadOnlyData()...)
			piece.Free()
			return
		}
	}
	b.queue = append(b.queue, piece)
}

// end ends the queue with an error. The first error counts.
func (b *inbox) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.filled.Signal()
	if b.broken != nil && err != io.EOF {
		b.broken()
	}
}

// arrived returns the number of bytes received so far.
func (b *inbox) arrived() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// discard ends the queue and frees unread data.
func (b *inbox) discard(err error) {
	b.end(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue.Free()
	b.queue, b.size = nil, 0
}

// take waits until the given number of bytes is queued or the queue has ended, and returns all queued data; the caller
// owns it. It returns the error after all data was read.
func (b *inbox) take(least int) (mem.BufferSlice, error) {
	b.mu.Lock()
	for b.want = least; b.size < least && b.err == nil; {
		b.filled.Wait()
	}
	b.want = 0
	pieces, err := b.queue, b.err
	b.queue = nil
	more := 0
	if b.taken += b.size; b.taken >= window/4 {
		more, b.taken = b.taken, 0
		b.left += more
	}
	b.size = 0
	b.mu.Unlock()
	if more > 0 && err == nil {
		b.grant(more)
	}
	if len(pieces) > 0 {
		err = nil
	}
	return pieces, err
}
