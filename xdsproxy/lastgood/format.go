package lastgood

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
)

// A snapshot file consists of:
//   - the line magic,
//   - the length of the header in 4 bytes, and the header in JSON,
//   - for each resource: the byte recordResource, the name, the version and the content,
//   - the byte recordEnd and the version of the type,
//   - the CRC-32C of all preceding bytes.
//
// The length of each name, version and content precedes it as a varint.
const (
	magic          = "pilotfish last good configuration 2\n"
	recordResource = 1
	recordEnd      = 0
	// maxHeader is the maximum size of the header in bytes, and maxField that of a name or version.
	maxHeader = 64 << 10
	maxField  = 64 << 10
	// bufferSize is the size of the buffers for reading and writing.
	bufferSize = 64 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header identifies the proxy and the resource type of a file.
type header struct {
	Identity
	TypeURL string `json:"type"`
}

// encoder writes a snapshot file. After an error its methods have no effect; finish returns the error.
type encoder struct {
	out  *bufio.Writer
	sum  uint32
	size int64
	max  int64
	err  error
}

// newEncoder writes the header of a file and returns an encoder for the rest. The encoder fails with ErrTooBig if the
// file becomes larger than maxBytes.
func newEncoder(out *bufio.Writer, h header, maxBytes int64) *encoder {
	e := &encoder{out: out, max: maxBytes}
	text, err := json.Marshal(h)
	if err == nil && len(text) > maxHeader {
		err = fmt.Errorf("the node ID, cluster and type of the proxy have %d bytes, more than %d", len(text), maxHeader)
	}
	e.err = err
	e.write([]byte(magic))
	e.write(binary.BigEndian.AppendUint32(nil, uint32(len(text))))
	e.write(text)
	return e
}

func (e *encoder) write(b []byte) {
	e.size += int64(len(b))
	if e.err == nil && e.size > e.max {
		e.err = fmt.Errorf("%w of %d bytes", ErrTooBig, e.max)
	}
	if e.err != nil {
		return
	}
	e.sum = crc32.Update(e.sum, castagnoli, b)
	_, e.err = e.out.Write(b)
}

func (e *encoder) writeField(text string) {
	e.write(binary.AppendUvarint(nil, uint64(len(text))))
	e.write([]byte(text))
}

// beginResource writes a resource without its content. The caller must then write the content, whose length in bytes is
// length.
func (e *encoder) beginResource(name, version string, length int64) {
	e.write([]byte{recordResource})
	e.writeField(name)
	e.writeField(version)
	e.write(binary.AppendUvarint(nil, uint64(length)))
}

// finish writes the version of the type and the checksum. It returns the first error of the encoder.
func (e *encoder) finish(version string) error {
	e.write([]byte{recordEnd})
	e.writeField(version)
	e.write(binary.BigEndian.AppendUint32(nil, e.sum))
	return e.err
}

// decoder reads a snapshot file.
type decoder struct {
	in     *bufio.Reader
	sum    uint32
	offset int64
	size   int64
	buffer []byte
}

// newDecoder reads the header of f and returns a decoder for the rest. It returns ErrCorrupt if f does not have this
// format.
func newDecoder(f *os.File) (*decoder, header, error) {
	var h header
	info, err := f.Stat()
	if err != nil {
		return nil, h, err
	}
	d := &decoder{in: bufio.NewReaderSize(f, bufferSize), size: info.Size()}
	start, err := d.read(len(magic) + 4)
	if err != nil || string(start[:len(magic)]) != magic {
		return nil, h, fmt.Errorf("%s: %w", f.Name(), ErrCorrupt)
	}
	length := binary.BigEndian.Uint32(start[len(magic):])
	if length > maxHeader {
		return nil, h, fmt.Errorf("%s: %w", f.Name(), ErrCorrupt)
	}
	text, err := d.read(int(length))
	if err != nil || json.Unmarshal(text, &h) != nil {
		return nil, h, fmt.Errorf("%s: %w", f.Name(), ErrCorrupt)
	}
	return d, h, nil
}

// read returns the next n bytes. The slice is valid until the next call.
func (d *decoder) read(n int) ([]byte, error) {
	if int64(n) > d.size-d.offset {
		return nil, ErrCorrupt
	}
	if cap(d.buffer) < n {
		d.buffer = make([]byte, n)
	}
	b := d.buffer[:n]
	if _, err := io.ReadFull(d.in, b); err != nil {
		return nil, err
	}
	d.offset += int64(n)
	d.sum = crc32.Update(d.sum, castagnoli, b)
	return b, nil
}

// readLength reads a varint. It returns ErrCorrupt if the value is above limit.
func (d *decoder) readLength(limit int64) (int64, error) {
	var value uint64
	for shift := 0; shift < 63; shift += 7 {
		b, err := d.read(1)
		if err != nil {
			return 0, err
		}
		value |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			if value > uint64(limit) {
				return 0, ErrCorrupt
			}
			return int64(value), nil
		}
	}
	return 0, ErrCorrupt
}

func (d *decoder) readField() (string, error) {
	n, err := d.readLength(maxField)
	if err != nil {
		return "", err
	}
	b, err := d.read(int(n))
	return string(b), err
}

// record is a resource in a file, without its content.
type record struct {
	name, version  string
	offset, length int64 // position and size of the content in the file
}

// errEnd is returned at the end of a valid file.
var errEnd = errors.New("end of file")

// next reads the next resource without its content. The caller must then read the content with copyContent. At the end
// of a valid file, next returns errEnd and the version of the type.
func (d *decoder) next() (r record, version string, err error) {
	kind, err := d.read(1)
	if err != nil {
		return r, "", err
	}
	switch kind[0] {
	case recordResource:
		r, err = d.readResource()
		return r, "", err
	case recordEnd:
		version, err = d.readEnd()
		return r, version, err
	}
	return r, "", ErrCorrupt
}

func (d *decoder) readResource() (r record, err error) {
	if r.name, err = d.readField(); err != nil {
		return r, err
	}
	if r.version, err = d.readField(); err != nil {
		return r, err
	}
	r.length, err = d.readLength(d.size - d.offset)
	r.offset = d.offset
	return r, err
}

// readEnd reads the version of the type and verifies the checksum. It returns errEnd if the file is valid.
func (d *decoder) readEnd() (version string, err error) {
	if version, err = d.readField(); err != nil {
		return "", err
	}
	want := d.sum
	sum, err := d.read(4)
	switch {
	case err != nil:
		return "", err
	case binary.BigEndian.Uint32(sum) != want || d.offset != d.size:
		return "", ErrCorrupt
	}
	return version, errEnd
}

// copyContent reads the content of a resource and passes it to write in pieces.
func (d *decoder) copyContent(length int64, write func([]byte)) error {
	for length > 0 {
		b, err := d.read(int(min(length, bufferSize)))
		if err != nil {
			return err
		}
		write(b)
		length -= int64(len(b))
	}
	return nil
}

// asCorrupt returns ErrCorrupt if err is an unexpected end of the file, and otherwise err.
func asCorrupt(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return ErrCorrupt
	}
	return err
}
