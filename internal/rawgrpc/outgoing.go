package rawgrpc

import (
	"bytes"
	"errors"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
)

const (
	// room bounds what waits to be written before those wait who have more, and batch is from how much of it writing begins
	// before a message is there as a whole. What has to be said beside the messages may go beyond, up to excess.
	room   = 256 << 10
	batch  = 64 << 10
	excess = room + 256<<10
	// mostFrame bounds frames where the peer would take larger ones.
	mostFrame = 64 << 10
	// keptBuffer is up to which size a buffer is kept from message to message.
	keptBuffer = 32 << 10
)

var errExcess = errors.New("the peer asks for more answers than it reads")

// outgoing is what a link has to write. Those who send put it here, and never wait for the connection itself: so the end of a
// stream frees them. The link's lock guards it.
type outgoing struct {
	out, spare []byte // what waits, and a buffer for what will
	writing    bool   // somebody writes
	window     int64  // what the peer lets be sent of data
	initial    int64  // the window of a new stream
	frame      int    // the size of the largest frame
	last       uint32 // the stream that was opened last
	most       uint32 // how many streams the peer takes, where that is bounded
	bounded    bool
	encoder    *hpack.Encoder
	block      bytes.Buffer
}

// control writes a frame that belongs to no message.
func (l *link) control(frame []byte) {
	l.mu.Lock()
	l.out = append(l.out, frame...)
	tooMuch := len(l.out) > excess
	l.flush()
	l.mu.Unlock()
	if tooMuch {
		l.fail(errExcess)
	}
}

// flush sees to it that what waits is written; the lock is held.
func (l *link) flush() {
	if !l.writing && l.err == nil && len(l.out) > 0 {
		l.writing = true
		go l.write()
	}
}

// write writes until nothing waits.
func (l *link) write() {
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

// calm lets large buffers go, once no message is under way; the lock is held.
func (l *link) calm() {
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
func (l *link) headers(id uint32, fields []hpack.HeaderField, end bool) {
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

// send sends parts of the message of a stream, and waits for windows and room. Where more is to come, the end may stay behind.
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

// add puts data to what waits to be written; the lock is held.
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
