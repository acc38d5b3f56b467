package rawgrpc

import (
	"bytes"
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

const (
	// room limits the queued bytes; at the limit senders wait. batch is the number of queued bytes from which an
	// incomplete message is written. Frames other than DATA may exceed room, up to excess.
	room   = 256 << 10
	batch  = 64 << 10
	excess = room + 256<<10
	// maxFrame limits the frame size if the peer supports larger frames.
	maxFrame = 64 << 10
	// keptBuffer limits the size of a buffer that is reused.
	keptBuffer = 32 << 10
)

var errExcess = errors.New("the peer requests more answers than it reads")

// outgoing is the send queue of a connection. Senders append to it and never wait for the connection itself, so the end
// of a stream unblocks them. The connection's lock guards it.
type outgoing struct {
	out, spare []byte // queued data, and a spare buffer
	writing    bool   // a goroutine writes the queue
	window     int64  // send window of the connection
	initial    int64  // the window of a new stream
	frame      int    // the size of the largest frame
	last       uint32 // the stream that was opened last
	most       uint32 // the peer's limit of streams, if bounded is set
	bounded    bool
	encoder    *hpack.Encoder
	block      bytes.Buffer
}

// control queues a frame other than DATA.
func (l *rawConn) control(frame []byte) {
	l.mu.Lock()
	l.out = append(l.out, frame...)
	tooMuch := len(l.out) > excess
	l.flush()
	l.mu.Unlock()
	if tooMuch {
		l.fail(errExcess)
	}
}

// flush starts a goroutine that writes the queue, if there is none; the lock is held.
func (l *rawConn) flush() {
	if !l.writing && l.err == nil && len(l.out) > 0 {
		l.writing = true
		go l.write()
	}
}

// write writes until the queue is empty.
func (l *rawConn) write() {
	l.mu.Lock()
	for l.err == nil && len(l.out) > 0 {
		now := l.out
		l.out, l.spare = l.spare[:0], nil
		l.moved.Broadcast()
		l.mu.Unlock()
		_, err := l.conn.Write(now)
		if err != nil {
			l.fail(err)
		}
		l.mu.Lock()
		l.spare = now
	}
	l.writing = false
	l.moved.Broadcast()
	l.calm()
	l.mu.Unlock()
}

// calm frees large buffers if no message is being sent; the lock is held.
func (l *rawConn) calm() {
	for _, s := range l.streams {
		if s.missing > 0 {
			return
		}
	}
	if cap(l.spare) > keptBuffer {
		l.spare = nil
	}
	if len(l.out) == 0 && cap(l.out) > keptBuffer {
		l.out = nil
	}
}

// headers writes a block of headers; the lock is held.
func (l *rawConn) headers(id uint32, fields []hpack.HeaderField, end bool) {
	l.block.Reset()
	for _, f := range fields {
		_ = l.encoder.WriteField(f)
	}
	kind, flags := http2.FrameHeaders, http2.Flags(0)
	if end {
		flags = http2.FlagHeadersEndStream
	}
	for first := true; first || l.block.Len() > 0; first = false {
		part := l.block.Next(l.frame)
		if l.block.Len() == 0 {
			flags |= http2.FlagHeadersEndHeaders
		}
		l.out = append(appendHead(l.out, len(part), kind, flags, id), part...)
		kind, flags = http2.FrameContinuation, 0
	}
}

// send sends parts of a message and waits for windows and space in the queue. If more is set, the end may stay in the
// queue.
func (s *stream) send(parts mem.BufferSlice, more bool) error {
	l := s.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, part := range parts {
		if err := s.add(part.ReadOnlyData()); err != nil {
			return err
		}
	}
	if !more || len(l.out) >= batch {
		l.flush()
	}
	return nil
}

// add appends data to the queue; the lock is held.
func (s *stream) add(data []byte) error {
	l := s.link
	for len(data) > 0 {
		n := min(int64(len(data)), int64(l.frame), int64(room-len(l.out)), l.window, s.window)
		switch {
		case s.over != nil:
			return s.over
		case n <= 0:
			l.flush()
			l.moved.Wait()
			continue
		}
		l.out = append(appendHead(l.out, int(n), http2.FrameData, 0, s.id), data[:n]...)
		l.window -= n
		s.window -= n
		s.missing -= int(n)
		data = data[n:]
		if len(l.out) >= batch {
			l.flush()
		}
	}
	return s.over
}
