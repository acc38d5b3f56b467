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

// The file starts with magic and a header: length, JSON, checksum. Records follow: kind, length, content, and a
// checksum of all three.
const (
	magic     = "pilotfish last good configuration 1\n"
	maxHeader = 16 << 10
	// maxRecord limits the length of a record, and thus of a resource.
	maxRecord = 1 << 30
	// maxField limits the length of names, types and versions.
	maxField = 64 << 10

	recordHeaderLen = 1 + 4
	checksumLen     = 4
)

type kind byte

const (
	// kindReset removes everything before it, once a checkpoint follows. Only earlier versions of the agent write it.
	kindReset kind = 1 + iota
	// kindResource: stage, type, name, version, content.
	kindResource
	// kindRemoved: stage, type, name.
	kindRemoved
	// kindResponse ends the records of a stage: stage, type, version, and whether the response contains all resources
	// of the type.
	kindResponse
	// kindAccepted: stage, and the names of the resources that Envoy did not accept.
	kindAccepted
	// kindUnsubscribed: type, name. Envoy no longer requests the resource.
	kindUnsubscribed
	// kindCheckpoint: time. The resources accepted before it are consistent.
	kindCheckpoint
	// kindUpToDate: time. The configuration was up to date until then.
	kindUpToDate
	// kindRejected: stage. The response has no effect, and the number can be used for another stage.
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
	rest := make([]byte, length+checksumLen)
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

func encodeFields(number uint64, texts ...string) []byte {
	b := binary.AppendUvarint(nil, number)
	for _, t := range texts {
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
	}
	return b
}

// recordReader reads records and verifies their checksums.
type recordReader struct {
	in        *bufio.Reader
	sum       hash.Hash32
	offset    int64 // position in the file
	remaining int64 // bytes of this record that are not yet read
}

func newRecordReader(from source, offset int64) *recordReader {
	r := io.NewSectionReader(from, offset, from.Size()-offset)
	return &recordReader{in: bufio.NewReaderSize(r, 64<<10), sum: crc32.New(castagnoli), offset: offset}
}

// nextRecord reads the header of the next record. It returns io.EOF at the end of the file, and ErrCorrupt inside a
// header.
func (r *recordReader) nextRecord() (kind, error) {
	var head [recordHeaderLen]byte
	if n, err := io.ReadFull(r.in, head[:]); err != nil {
		if n == 0 {
			return 0, io.EOF
		}
		return 0, ErrCorrupt
	}
	r.offset += recordHeaderLen
	r.sum.Reset()
	_, _ = r.sum.Write(head[:])
	r.remaining = int64(binary.BigEndian.Uint32(head[1:]))
	if r.remaining > maxRecord {
		return 0, ErrCorrupt
	}
	return kind(head[0]), nil
}

func (r *recordReader) readUvarint() (uint64, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil {
		return 0, ErrCorrupt
	}
	return n, nil
}

// ReadByte returns the next byte of the record.
func (r *recordReader) ReadByte() (byte, error) {
	if r.remaining == 0 {
		return 0, ErrCorrupt
	}
	b, err := r.in.ReadByte()
	if err != nil {
		return 0, ErrCorrupt
	}
	r.remaining--
	r.offset++
	_, _ = r.sum.Write([]byte{b})
	return b, nil
}

func (r *recordReader) readString() (string, error) {
	n, err := r.readUvarint()
	if err != nil || n > maxField || int64(n) > r.remaining {
		return "", ErrCorrupt
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", ErrCorrupt
	}
	r.remaining -= int64(n)
	r.offset += int64(n)
	_, _ = r.sum.Write(b)
	return string(b), nil
}

// finish skips the rest of the record, verifies the checksum, and returns the position of the rest.
func (r *recordReader) finish() (rest span, err error) {
	rest = span{offset: r.offset, length: r.remaining}
	if _, err := io.CopyN(r.sum, r.in, r.remaining); err != nil {
		return rest, ErrCorrupt
	}
	var tail [checksumLen]byte
	if _, err := io.ReadFull(r.in, tail[:]); err != nil || binary.BigEndian.Uint32(tail[:]) != r.sum.Sum32() {
		return rest, ErrCorrupt
	}
	r.offset += r.remaining + checksumLen
	r.remaining = 0
	return rest, nil
}

// span is a range of bytes in the file.
type span struct{ offset, length int64 }
