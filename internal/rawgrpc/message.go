// Package rawgrpc implements gRPC streams whose messages are bytes. Messages can be received and sent in pieces while
// they arrive. It implements the part of HTTP/2 that gRPC needs (https://www.rfc-editor.org/rfc/rfc9113), based on the
// frames and header compression of golang.org/x/net. It adds gRPC's paths, headers, message prefixes and status
// trailers (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md). Messages are not compressed.
//
// The HTTP/2 implementations of the standard library and of gRPC pass each frame of 16 KB between goroutines and
// acknowledge each one. For large messages this is a large part of a relay's cost.
package rawgrpc

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// prefixSize is the length of a message's prefix: compression flag and message length.
	prefixSize = 5
	// gather is the amount of a large message that is awaited at a time: waking a goroutine for each frame costs more
	// than the frame.
	gather = 128 << 10
	// poolFrom is the minimum size of pooled buffers.
	poolFrom = 1 << 10
)

func appendPrefix(b []byte, size int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0), uint32(size))
}

// Messages reads the messages of one direction of a stream. It is not safe for concurrent use.
type Messages struct {
	from source
	most int
	// have contains size bytes that were received and not yet read.
	have mem.BufferSlice
	size int
	rest int
	// why converts a read error to the error of the stream.
	why func(error) error
}

// source provides the bytes of the messages, for example an inbox.
type source interface {
	take(least int) (mem.BufferSlice, error)
}

func newMessages(from source, most int, why func(error) error) *Messages {
	return &Messages{from: from, most: most, why: why}
}

// fill waits until at least the given number of bytes is available.
func (m *Messages) fill(least int) error {
	for m.size < least {
		more, err := m.from.take(least - m.size)
		if err != nil {
			if err == io.EOF && (m.size > 0 || m.rest > 0) {
				err = io.ErrUnexpectedEOF
			}
			return m.why(err)
		}
		m.keep(more)
	}
	return nil
}

func (m *Messages) keep(more mem.BufferSlice) {
	m.have = append(m.have, more...)
	m.size += more.Len()
}

// Next waits for the next message and returns its size. The previous message must have been read completely. It returns
// io.EOF after an orderly end of the stream, and an error with a gRPC status otherwise.
func (m *Messages) Next() (size int, err error) {
	if err := m.fill(prefixSize); err != nil {
		return 0, err
	}
	compressed, length := m.prefix()
	switch {
	case compressed:
		return 0, status.Error(codes.Unimplemented, "a message is compressed, which was not negotiated")
	case uint64(length) > uint64(m.most):
		return 0, status.Errorf(codes.ResourceExhausted, "received message larger than max (%d vs. %d)", length, m.most)
	}
	for skipped := 0; skipped < prefixSize; {
		part := m.cut(prefixSize - skipped)
		skipped += part.Len()
		part.Free()
	}
	m.rest = int(length)
	return m.rest, nil
}

// prefix reads that of the next message, which is there.
func (m *Messages) prefix() (compressed bool, length uint32) {
	var head [prefixSize]byte
	n := 0
	for _, part := range m.have {
		if n += copy(head[n:], part.ReadOnlyData()); n == prefixSize {
			break
		}
	}
	return head[0] != 0, binary.BigEndian.Uint32(head[1:])
}

// cut removes the first piece of the available data, limited to most bytes, and returns it.
func (m *Messages) cut(most int) mem.Buffer {
	piece := m.have[0]
	if piece.Len() > most {
		piece, m.have[0] = mem.SplitUnsafe(piece, most)
	} else {
		m.have[0] = nil
		if m.have = m.have[1:]; len(m.have) == 0 {
			m.have = nil
		}
	}
	m.size -= piece.Len()
	return piece
}

// NextPiece waits for the next piece of the message and returns it; the caller owns it. After the last piece it returns
// io.EOF.
func (m *Messages) NextPiece() (mem.Buffer, error) {
	if m.rest == 0 {
		return nil, io.EOF
	}
	if m.size == 0 {
		if err := m.fill(min(m.rest, gather)); err != nil {
			return nil, err
		}
	}
	piece := m.cut(m.rest)
	m.rest -= piece.Len()
	return piece, nil
}

// ReadRest waits for the rest of the message and appends it to have. If that fails, it frees have.
func (m *Messages) ReadRest(have mem.BufferSlice) (mem.BufferSlice, error) {
	for {
		piece, err := m.NextPiece()
		switch {
		case err == io.EOF:
			return have, nil
		case err != nil:
			have.Free()
			return nil, err
		}
		have = append(have, piece)
	}
}

// HasNext reports whether the next message has arrived completely.
func (m *Messages) HasNext() bool {
	if m.rest > 0 {
		return false
	}
	if !m.holds() {
		if more, err := m.from.take(0); err == nil {
			m.keep(more)
		}
	}
	return m.holds()
}

// holds reports whether the available data starts with a complete message.
func (m *Messages) holds() bool {
	if m.size < prefixSize {
		return false
	}
	compressed, length := m.prefix()
	return !compressed && uint64(length) <= uint64(min(m.most, m.size-prefixSize))
}

// Remaining returns the number of bytes of the message that are not read yet.
func (m *Messages) Remaining() int { return m.rest }

func newPiece(size int) mem.Buffer {
	if size < poolFrom {
		return mem.SliceBuffer(make([]byte, size))
	}
	pool := mem.DefaultBufferPool()
	return mem.NewBuffer(pool.Get(size), pool)
}
