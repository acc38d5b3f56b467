// Package rawgrpc carries streams of gRPC whose messages are bytes: they can be received piece by piece, while they still
// arrive, and sent so. It has as much of HTTP/2 as gRPC needs (https://www.rfc-editor.org/rfc/rfc9113), over the frames and
// the header compression of golang.org/x/net, and what gRPC adds to it, as
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md has it: paths, headers, the prefix of a message, the
// status in the trailers. Messages are not compressed.
//
// Both the standard library's HTTP/2 and gRPC's hand each frame of 16 KB from goroutine to goroutine, and tell the peer of
// each that it was taken; with large messages, that is much of what a relay costs.
package rawgrpc

import (
	"encoding/binary"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

const (
	// prefixSize is what stands before a message: whether it is compressed, and its size.
	prefixSize = 5
	// gather is how much of a large message is waited for at a time: a goroutine that is woken for each frame costs more than
	// the frame does.
	gather = 128 << 10
	// poolFrom is the size from which pieces are used again.
	poolFrom = 1 << 10
)

func appendPrefix(b []byte, size int) []byte {
	return binary.BigEndian.AppendUint32(append(b, 0), uint32(size))
}

// Messages reads the messages of one direction of a stream. It is for one goroutine at a time.
type Messages struct {
	from source
	most int
	// have is what was taken of the stream and not yet read, and size how much that is.
	have mem.BufferSlice
	size int
	rest int
	// why makes the error of a stream that ended, of the one that reading gave.
	why func(error) error
}

// source is where the bytes of the messages come from, as an inbox.
type source interface {
	take(least int) (mem.BufferSlice, error)
}

func newMessages(from source, most int, why func(error) error) *Messages {
	return &Messages{from: from, most: most, why: why}
}

// fill takes more, until so much is there.
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

// Next begins the next message, of which all has to have been read that came before, and gives its size. An orderly end of
// the stream is io.EOF, any other one an error with a status.
func (m *Messages) Next() (size int, err error) {
	if err := m.fill(prefixSize); err != nil {
		return 0, err
	}
	compressed, length := m.prefix()
	switch {
	case compressed:
		return 0, status.Error(codes.Unimplemented, "a message is compressed, which was not asked for")
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

// cut takes the first piece of what is there, and at most so much.
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

// Piece waits for the next piece of the message, of which the caller has the reference. After the last one it gives io.EOF.
func (m *Messages) Piece() (mem.Buffer, error) {
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

// Rest waits for all that is missing of the message, and appends it to what the caller has of it. What is there is freed when
// the rest does not come.
func (m *Messages) Rest(have mem.BufferSlice) (mem.BufferSlice, error) {
	for {
		piece, err := m.Piece()
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

// Ready says whether the next message is there already, whole.
func (m *Messages) Ready() bool {
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

// holds says whether what was taken begins with a whole message.
func (m *Messages) holds() bool {
	if m.size < prefixSize {
		return false
	}
	compressed, length := m.prefix()
	return !compressed && uint64(length) <= uint64(min(m.most, m.size-prefixSize))
}

// Missing is how much of the message was not read yet.
func (m *Messages) Missing() int { return m.rest }

func newPiece(size int) mem.Buffer {
	if size < poolFrom {
		return mem.SliceBuffer(make([]byte, size))
	}
	pool := mem.DefaultBufferPool()
	return mem.NewBuffer(pool.Get(size), pool)
}
