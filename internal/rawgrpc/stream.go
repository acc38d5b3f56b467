package rawgrpc

import (
	"errors"
	"io"
	"sync"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/mem"
)

// stream is what the streams of both sides have in common.
type stream struct {
	link *link
	id   uint32
	in   inbox
	// eof is what it means that no more data comes.
	eof error
	// sending is held while a message is sent.
	sending sync.Mutex

	// The link's lock guards what follows.
	window   int64 // what the peer lets be sent
	open     bool  // the peer's headers have come
	missing  int   // of the message that was begun
	over     error // why nothing more is sent
	done     bool  // all was said from here
	peerDone bool  // the peer has said all
}

// newStream begins a stream; the link's lock is held.
func newStream(l *link, id uint32, eof error) *stream {
	s := &stream{link: l, id: id, eof: eof, window: l.initial}
	l.streams[id] = s
	s.in.init(s.grant)
	return s
}

// grant lets the peer send more.
func (s *stream) grant(more int) {
	l := s.link
	l.mu.Lock()
	wanted := !s.peerDone && l.streams[s.id] == s
	l.mu.Unlock()
	if wanted {
		l.control(windowUpdate(s.id, more))
	}
}

// peerEnded is told that the peer has said all, and how that ended.
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

// endSending says that nothing more is to come; the lock is held.
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

// remove forgets a stream; the lock is held.
func (l *link) remove(s *stream) {
	if l.streams[s.id] == s {
		delete(l.streams, s.id)
		l.side.ended(s)
	}
}

// reset ends a stream in disorder, and tells the peer.
func (l *link) reset(id uint32, code http2.ErrCode, why error) {
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

// drop forgets a stream that has not been ended from both sides; the lock is held.
func (l *link) drop(s *stream, why error) {
	if s.over == nil {
		s.over = why
	}
	l.remove(s)
	l.moved.Broadcast()
}

func (l *link) peerReset(f *http2.RSTStreamFrame) {
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

// joined bounds what small pieces are joined to.
const joined = 4 << 10

// inbox holds what has come of a stream until it is taken.
type inbox struct {
	grant  func(int)
	broken func() // is called when the stream has ended in disorder, if it is set

	mu     sync.Mutex
	filled *sync.Cond
	queue  mem.BufferSlice
	size   int
	total  int // what has come so far
	want   int // how much is waited for
	left   int // what the peer may still send
	taken  int // what was taken since the peer was last allowed more
	err    error
}

func (b *inbox) init(grant func(int)) {
	b.grant, b.left = grant, window
	b.filled = sync.NewCond(&b.mu)
}

var errFlow = errors.New("the peer sends more than it may")

// put takes a piece over.
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

// append queues a piece. Small ones are joined, so that a peer that sends a byte at a time costs no more memory than others.
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

// end says that nothing more will come. The first reason counts.
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

// arrived is how much has come so far, whether it was taken or not.
func (b *inbox) arrived() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.total
}

// discard ends, and frees what was not taken.
func (b *inbox) discard(err error) {
	b.end(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue.Free()
	b.queue, b.size = nil, 0
}

// take waits until so much is there, or nothing more will come, and gives all there is; the caller has its references. The
// error comes after all else was taken.
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
