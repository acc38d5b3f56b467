package lastgood

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"time"
)

// The file begins with magic and a header: a length, JSON, and a checksum. Then come records: a kind, a length, that many
// bytes, and a checksum over all of it.
const (
	magic     = "pilotfish last good configuration 1\n"
	maxHeader = 16 << 10
	// maxRecord bounds one record; a resource is one.
	maxRecord = 1 << 30
	// maxField bounds the length of names, types and versions.
	maxField = 64 << 10

	recordHead = 1 + 4
	recordTail = 4
)

type kind byte

const (
	// kindBegin begins anew: nothing of what came before is there any more, once there is a mark. Only earlier versions of
	// the agent wrote it.
	kindBegin kind = 1 + iota
	// kindResource: stage, type, name, version, content.
	kindResource
	// kindRemoved: stage, type, name.
	kindRemoved
	// kindResponse ends a stage's records: stage, type, version, and whether it was all there is of the type.
	kindResponse
	// kindAccepted: stage, and the names of the resources that were not.
	kindAccepted
	// kindDropped: type, name. It is not asked for any more.
	kindDropped
	// kindMark: time. What counts by now fits together.
	kindMark
	// kindSeen: time. What is there was up to date until then.
	kindSeen
	// kindRejected: stage. It never counts, and its number may be another's.
	kindRejected
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	Identity
	Written time.Time `json:"written"`
}

func writeHeader(w io.Writer, h header) error {
	body, err := json.Marshal(h)
	if err != nil {
		return err
	}
	b := append([]byte(magic), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[len(magic):], uint32(len(body)))
	b = append(b, body...)
	_, err = w.Write(binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)))
	return err
}

func readHeader(r io.Reader) (h header, size int64, err error) {
	head := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return h, 0, ErrCorrupt
	}
	if string(head[:len(magic)]) != magic {
		return h, 0, ErrFormat
	}
	length := binary.BigEndian.Uint32(head[len(magic):])
	if length > maxHeader {
		return h, 0, ErrCorrupt
	}
	rest := make([]byte, length+recordTail)
	if _, err := io.ReadFull(r, rest); err != nil {
		return h, 0, ErrCorrupt
	}
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, rest[:length])
	if sum != binary.BigEndian.Uint32(rest[length:]) {
		return h, 0, ErrCorrupt
	}
	if err := json.Unmarshal(rest[:length], &h); err != nil {
		return h, 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return h, int64(len(head) + len(rest)), nil
}

func fields(number uint64, texts ...string) []byte {
	b := binary.AppendUvarint(nil, number)
	for _, t := range texts {
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
	}
	return b
}

// reader reads records, and checks them.
type reader struct {
	in     *bufio.Reader
	sum    hash.Hash32
	offset int64 // of what comes next
	left   int64 // of this record's bytes
}

func newReader(from source, offset int64) *reader {
	r := io.NewSectionReader(from, offset, from.Size()-offset)
	return &reader{in: bufio.NewReaderSize(r, 64<<10), sum: crc32.New(castagnoli), offset: offset}
}

// next begins a record. io.EOF is the end between two of them.
func (r *reader) next() (kind, error) {
	var head [recordHead]byte
	if n, err := io.ReadFull(r.in, head[:]); err != nil {
		if n == 0 {
			return 0, io.EOF
		}
		return 0, ErrCorrupt
	}
	r.offset += recordHead
	r.sum.Reset()
	_, _ = r.sum.Write(head[:])
	r.left = int64(binary.BigEndian.Uint32(head[1:]))
	if r.left > maxRecord {
		return 0, ErrCorrupt
	}
	return kind(head[0]), nil
}

func (r *reader) number() (uint64, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, ErrCorrupt
	}
	return n, nil
}

// ReadByte reads one byte of the record.
func (r *reader) ReadByte() (byte, error) {
	if r.left == 0 {
		return 0, ErrCorrupt
	}
	b, err := r.in.ReadByte()
	if err != nil {
		return 0, ErrCorrupt
	}
	r.left--
	r.offset++
	_, _ = r.sum.Write([]byte{b})
	return b, nil
}

func (r *reader) text() (string, error) {
	n, err := r.number()
	if err != nil || n > maxField || int64(n) > r.left {
		return "", ErrCorrupt
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", ErrCorrupt
	}
	r.left -= int64(n)
	r.offset += int64(n)
	_, _ = r.sum.Write(b)
	return string(b), nil
}

// end passes over the rest of the record, and checks it. It tells where that rest is.
func (r *reader) end() (rest place, err error) {
	rest = place{offset: r.offset, length: r.left}
	if _, err := io.CopyN(r.sum, r.in, r.left); err != nil {
		return rest, ErrCorrupt
	}
	var tail [recordTail]byte
	if _, err := io.ReadFull(r.in, tail[:]); err != nil || binary.BigEndian.Uint32(tail[:]) != r.sum.Sum32() {
		return rest, ErrCorrupt
	}
	r.offset += r.left + recordTail
	r.left = 0
	return rest, nil
}

// place is where in the file something is.
type place struct{ offset, length int64 }
