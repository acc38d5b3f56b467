package wasm

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"path"
)

// moduleMagic begins every WebAssembly module.
var moduleMagic = []byte("\x00asm")

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

const (
	tarMagicAt = 257
	// deepest is how many wrappings are taken off: a tar in gzip, and one to spare.
	deepest = 3
	// mostMembers bounds the files of an archive that are looked at.
	mostMembers = 10000
)

// errTooLarge is of modules that are larger than they may be, as they come or unpacked.
var errTooLarge = errors.New("it is larger than a module may be")

// unpack copies the module that is in the input, as it is, in gzip, in a tar archive, or both. Of an archive it takes the
// first file of the given base name that is a module, or the first module when the name is empty. It writes no more than max
// bytes, and looks at no more than that plus the headers of an archive.
func unpack(to io.Writer, from io.Reader, name string, max int64) error {
	return unwrap(to, &capped{from: from, left: max + 1<<20}, name, max, deepest)
}

func unwrap(to io.Writer, from io.Reader, name string, max int64, depth int) error {
	in := bufio.NewReaderSize(from, 32<<10)
	head, err := in.Peek(tarMagicAt + 5)
	if len(head) == 0 {
		return fmt.Errorf("it is empty: %w", noEOF(err))
	}
	switch {
	case bytes.HasPrefix(head, moduleMagic):
		return copyModule(to, in, max)
	case depth == 0:
		return errors.New("it is packed more than once")
	case bytes.HasPrefix(head, gzipMagic):
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("unpacking gzip: %w", err)
		}
		return unwrap(to, &capped{from: unzipped, left: max + 1<<20}, name, max, depth-1)
	case len(head) > tarMagicAt && bytes.HasPrefix(head[tarMagicAt:], []byte("ustar")):
		return member(to, tar.NewReader(in), name, max)
	case bytes.HasPrefix(head, zstdMagic):
		return errors.New("it is packed with zstd, which is not supported; pack it with gzip")
	}
	return fmt.Errorf("it is not a WebAssembly module, nor gzip nor tar: it begins with %q", head[:min(len(head), 8)])
}

// member takes a module out of an archive.
func member(to io.Writer, archive *tar.Reader, name string, max int64) error {
	for range mostMembers {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("reading the archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg || name != "" && path.Base(header.Name) != name {
			continue
		}
		in := bufio.NewReader(archive)
		if head, _ := in.Peek(len(moduleMagic)); bytes.Equal(head, moduleMagic) {
			return copyModule(to, in, max)
		}
	}
	if name == "" {
		return errors.New("the archive holds no WebAssembly module")
	}
	return fmt.Errorf("the archive holds no WebAssembly module %s", name)
}

func copyModule(to io.Writer, from io.Reader, max int64) error {
	n, err := io.Copy(to, io.LimitReader(from, max+1))
	if err != nil {
		return fmt.Errorf("reading the module: %w", err)
	}
	if n > max {
		return errTooLarge
	}
	return nil
}

// capped gives no more than so many bytes, and fails then.
type capped struct {
	from io.Reader
	left int64
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errTooLarge
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

func noEOF(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
