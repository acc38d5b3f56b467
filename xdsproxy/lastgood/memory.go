package lastgood

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"os"
	"slices"
)

// blockSize is how much is compressed at a time. To read a resource, its blocks are unpacked.
const blockSize = 32 << 10

// memory keeps files where no disk does. Configuration says much the same over and over: compressed, it takes a small part
// of what it says.
type memory struct {
	most  int64
	files map[string]*memoryFile
	// packer is there while something is written: it takes most of a megabyte.
	packer *flate.Writer
}

func newMemory(most int64) *memory { return &memory{most: most, files: make(map[string]*memoryFile)} }

// held is how much memory the files take.
func (m *memory) held() (bytes int64) {
	for _, f := range m.files {
		bytes += f.held + int64(cap(f.tail))
	}
	return bytes
}

func (m *memory) create(name string) (file, error) {
	f := &memoryFile{memory: m}
	m.files[name] = f
	return f, nil
}

// read gives what is there at the moment; what is written later has no influence on it.
func (m *memory) read() (source, error) {
	f := m.files[fileName]
	if f == nil {
		return nil, os.ErrNotExist
	}
	return &memorySource{blocks: slices.Clone(f.blocks), tail: slices.Clone(f.tail)}, nil
}

func (m *memory) resume(at int64) (file, error) {
	f := m.files[fileName]
	if f == nil {
		return nil, os.ErrNotExist
	}
	return f, f.Truncate(at)
}

func (m *memory) replace() error {
	if f := m.files[newName]; f != nil {
		m.files[fileName] = f
		delete(m.files, newName)
	}
	return nil
}

func (m *memory) remove(name string) { delete(m.files, name) }

func (m *memory) has() bool { return m.files[fileName] != nil }

func (m *memory) size() int64 {
	if f := m.files[fileName]; f != nil {
		return f.size()
	}
	return 0
}

func (m *memory) settle() { m.packer = nil }

func (m *memory) close() {
	clear(m.files)
	m.packer = nil
}

// memoryFile is blocks of the same size, and what is not yet one.
type memoryFile struct {
	memory *memory
	blocks []block
	tail   []byte
	held   int64 // by the blocks
}

// block is blockSize bytes, packed if that makes them fewer. It does not change.
type block struct {
	data   []byte
	packed bool
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
			if err := f.seal(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

// seal makes a block of the tail.
func (f *memoryFile) seal() error {
	b, err := f.memory.pack(f.tail)
	if err != nil {
		return err
	}
	if f.memory.held()+int64(len(b.data)) > f.memory.most {
		return fmt.Errorf("%w of %d bytes for what is kept in memory", ErrTooBig, f.memory.most)
	}
	f.blocks = append(f.blocks, b)
	f.held += int64(len(b.data))
	f.tail = f.tail[:0]
	return nil
}

func (m *memory) pack(content []byte) (block, error) {
	var packed bytes.Buffer
	if m.packer == nil {
		var err error
		if m.packer, err = flate.NewWriter(&packed, flate.BestSpeed); err != nil {
			return block{}, err
		}
	} else {
		m.packer.Reset(&packed)
	}
	if _, err := m.packer.Write(content); err != nil {
		return block{}, err
	}
	if err := m.packer.Close(); err != nil {
		return block{}, err
	}
	if packed.Len() >= len(content) {
		return block{data: bytes.Clone(content)}, nil
	}
	return block{data: bytes.Clone(packed.Bytes()), packed: true}, nil
}

// unpacker gives the content of blocks, one after the other.
type unpacker struct {
	reader  io.ReadCloser
	content []byte
}

func (u *unpacker) unpack(b block) ([]byte, error) {
	if !b.packed {
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

// Truncate shortens the file.
func (f *memoryFile) Truncate(size int64) error {
	whole := int(size / blockSize)
	switch {
	case size > f.size():
		return fmt.Errorf("%d bytes are less than %d", f.size(), size)
	case whole >= len(f.blocks):
		f.tail = f.tail[:size-int64(len(f.blocks))*blockSize]
		return nil
	}
	tail, err := new(unpacker).unpack(f.blocks[whole])
	if err != nil {
		return err
	}
	for _, b := range f.blocks[whole:] {
		f.held -= int64(len(b.data))
	}
	f.blocks = slices.Clone(f.blocks[:whole])
	f.tail = append(make([]byte, 0, blockSize), tail[:size%blockSize]...)
	return nil
}

// Sync has nothing to do: what is in memory ends with it.
func (f *memoryFile) Sync() error { return nil }

// Close leaves the file where it is.
func (f *memoryFile) Close() error { return nil }

// memorySource reads a file as it was. It is not safe for concurrent use.
type memorySource struct {
	blocks []block
	tail   []byte
	// unpacked is the block of that number, counted from 1.
	unpacked []byte
	number   int
	unpacker unpacker
}

// Size is how much there is to read.
func (s *memorySource) Size() int64 { return int64(len(s.blocks))*blockSize + int64(len(s.tail)) }

// ReadAt reads like a file.
func (s *memorySource) ReadAt(p []byte, offset int64) (read int, err error) {
	for read < len(p) {
		from, err := s.block(int(offset / blockSize))
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

func (s *memorySource) block(number int) (_ []byte, err error) {
	switch {
	case number == len(s.blocks):
		return s.tail, nil
	case number > len(s.blocks):
		return nil, io.EOF
	case number+1 == s.number:
		return s.unpacked, nil
	}
	s.number = 0
	if s.unpacked, err = s.unpacker.unpack(s.blocks[number]); err != nil {
		return nil, err
	}
	s.number = number + 1
	return s.unpacked, nil
}

// Close frees the blocks.
func (s *memorySource) Close() error {
	*s = memorySource{}
	return nil
}
