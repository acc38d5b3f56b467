package lastgood

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"os"
	"slices"
)

// blockSize is the amount of data that is compressed at a time. To read a resource, its blocks are decompressed.
const blockSize = 32 << 10

// memory stores files compressed in memory. Configuration is repetitive and compresses well.
type memory struct {
	maxBytes int64
	files    map[string]*memoryFile
	// compressor exists only while data is written, because it uses most of a megabyte.
	compressor *flate.Writer
}

func newMemory(maxBytes int64) *memory {
	return &memory{maxBytes: maxBytes, files: make(map[string]*memoryFile)}
}

// usage returns the memory that the files use, in bytes.
func (m *memory) usage() (bytes int64) {
	for _, f := range m.files {
		bytes += f.blockBytes + int64(cap(f.tail))
	}
	return bytes
}

func (m *memory) create(name string) (file, error) {
	f := &memoryFile{memory: m}
	m.files[name] = f
	return f, nil
}

// openCurrent returns the present content of the file; later writes do not change it.
func (m *memory) openCurrent() (source, error) {
	f := m.files[fileName]
	if f == nil {
		return nil, os.ErrNotExist
	}
	return &memorySource{blocks: slices.Clone(f.blocks), tail: slices.Clone(f.tail)}, nil
}

func (m *memory) openAppend(at int64) (file, error) {
	f := m.files[fileName]
	if f == nil {
		return nil, os.ErrNotExist
	}
	return f, f.Truncate(at)
}

func (m *memory) replace() error {
	if f := m.files[newFileName]; f != nil {
		m.files[fileName] = f
		delete(m.files, newFileName)
	}
	return nil
}

func (m *memory) remove(name string) { delete(m.files, name) }

func (m *memory) hasFile() bool { return m.files[fileName] != nil }

func (m *memory) size() int64 {
	if f := m.files[fileName]; f != nil {
		return f.size()
	}
	return 0
}

func (m *memory) releaseBuffers() { m.compressor = nil }

func (m *memory) close() {
	clear(m.files)
	m.compressor = nil
}

// memoryFile consists of blocks of the same size, and a tail that is shorter than a block.
type memoryFile struct {
	memory     *memory
	blocks     []block
	tail       []byte
	blockBytes int64 // memory of the blocks
}

// block contains blockSize bytes, compressed if that is shorter. It is immutable.
type block struct {
	data       []byte
	compressed bool
}

func (f *memoryFile) size() int64 { return int64(len(f.blocks))*blockSize + int64(len(f.tail)) }

func (f *memoryFile) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		if f.tail == nil {
			f.tail = make([]byte, 0, blockSize)
		}
		n := min(len(p), blockSize-len(f.tail))
		f.tail = append(f.tail, p[:n]...)
		p, written = p[n:], written+n
		if len(f.tail) == blockSize {
			if err := f.sealBlock(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// sealBlock compresses the tail into a block. It returns ErrTooBig if that exceeds the memory limit.
func (f *memoryFile) sealBlock() error {
	b, err := f.memory.compress(f.tail)
	if err != nil {
		return err
	}
	if f.memory.usage()+int64(len(b.data)) > f.memory.maxBytes {
		return fmt.Errorf("%w of %d bytes of memory", ErrTooBig, f.memory.maxBytes)
	}
	f.blocks = append(f.blocks, b)
	f.blockBytes += int64(len(b.data))
	f.tail = f.tail[:0]
	return nil
}

func (m *memory) compress(content []byte) (block, error) {
	var packed bytes.Buffer
	if m.compressor == nil {
		var err error
		if m.compressor, err = flate.NewWriter(&packed, flate.BestSpeed); err != nil {
			return block{}, err
		}
	} else {
		m.compressor.Reset(&packed)
	}
	if _, err := m.compressor.Write(content); err != nil {
		return block{}, err
	}
	if err := m.compressor.Close(); err != nil {
		return block{}, err
	}
	if packed.Len() >= len(content) {
		return block{data: bytes.Clone(content)}, nil
	}
	return block{data: bytes.Clone(packed.Bytes()), compressed: true}, nil
}

// decompressor decompresses blocks one at a time. Its result is valid until the next call.
type decompressor struct {
	reader  io.ReadCloser
	content []byte
}

func (u *decompressor) decompress(b block) ([]byte, error) {
	if !b.compressed {
		return b.data, nil
	}
	if u.reader == nil {
		u.reader, u.content = flate.NewReader(nil), make([]byte, blockSize)
	}
	if err := u.reader.(flate.Resetter).Reset(bytes.NewReader(b.data), nil); err != nil {
		return nil, err
	}
	_, err := io.ReadFull(u.reader, u.content)
	return u.content, err
}

// Truncate shortens the file to size bytes.
func (f *memoryFile) Truncate(size int64) error {
	block := int(size / blockSize)
	switch {
	case size > f.size():
		return fmt.Errorf("cannot truncate %d bytes to %d", f.size(), size)
	case block >= len(f.blocks):
		f.tail = f.tail[:size-int64(len(f.blocks))*blockSize]
		return nil
	}
	tail, err := new(decompressor).decompress(f.blocks[block])
	if err != nil {
		return err
	}
	for _, b := range f.blocks[block:] {
		f.blockBytes -= int64(len(b.data))
	}
	f.blocks = slices.Clone(f.blocks[:block])
	f.tail = append(make([]byte, 0, blockSize), tail[:size%blockSize]...)
	return nil
}

// Sync does nothing.
func (f *memoryFile) Sync() error { return nil }

// Close does nothing: the file stays in memory.
func (f *memoryFile) Close() error { return nil }

// memorySource reads the content of a file at one point in time. It is not safe for concurrent use.
type memorySource struct {
	blocks []block
	tail   []byte
	// cached is the content of the block cachedNumber, which counts from 1.
	cached       []byte
	cachedNumber int
	decompressor decompressor
}

// Size returns the number of bytes.
func (s *memorySource) Size() int64 { return int64(len(s.blocks))*blockSize + int64(len(s.tail)) }

// ReadAt implements io.ReaderAt.
func (s *memorySource) ReadAt(p []byte, offset int64) (read int, err error) {
	for read < len(p) {
		from, err := s.loadBlock(int(offset / blockSize))
		if err != nil {
			return read, err
		}
		at := int(offset % blockSize)
		if at >= len(from) {
			return read, io.EOF
		}
		n := copy(p[read:], from[at:])
		read, offset = read+n, offset+int64(n)
	}
	return read, nil
}

func (s *memorySource) loadBlock(number int) (_ []byte, err error) {
	switch {
	case number == len(s.blocks):
		return s.tail, nil
	case number > len(s.blocks):
		return nil, io.EOF
	case number+1 == s.cachedNumber:
		return s.cached, nil
	}
	s.cachedNumber = 0
	if s.cached, err = s.decompressor.decompress(s.blocks[number]); err != nil {
		return nil, err
	}
	s.cachedNumber = number + 1
	return s.cached, nil
}

// Close releases the blocks.
func (s *memorySource) Close() error {
	*s = memorySource{}
	return nil
}
