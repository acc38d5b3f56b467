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

// moduleMagic is the prefix of every WebAssembly module.
var moduleMagic = []byte("\x00asm")

var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

const (
	tarMagicOffset = 257
	// maxNesting is the maximum number of nested gzip and tar formats around a module.
	maxNesting = 3
	// maxMembers limits how many files of an archive are examined.
	maxMembers = 10000
)

// errTooLarge means that a module is larger than Config.MaxSize, packed or unpacked, or a registry's response larger than
// maxResponse.
var errTooLarge = errors.New("larger than the maximum size (ISTIO_WASM_MAX_BINARY_SIZE_BYTES)")

// unpack extracts the module from the input, which is an uncompressed module, gzip, a tar archive, or a tar archive in
// gzip. From an archive it extracts the first module whose base name is name, or the first module if name is empty. It
// writes at most max bytes, and reads at most 1 MiB more than max.
func unpack(to io.Writer, from io.Reader, name string, max int64) error {
	return unwrap(to, &limitedReader{from: from, left: max + 1<<20}, name, max, maxNesting)
}

// unwrap detects the format of the input and unpacks it. depth is the number of formats that may still be nested.
func unwrap(to io.Writer, from io.Reader, name string, max int64, depth int) error {
	in := bufio.NewReaderSize(from, 32<<10)
	head, err := in.Peek(tarMagicOffset + 5)
	if len(head) == 0 {
		return fmt.Errorf("the module is empty: %w", noEOF(err))
	}
	switch {
	case bytes.HasPrefix(head, moduleMagic):
		return copyModule(to, in, max)
	case depth == 0:
		return errors.New("the module is compressed or archived more than three times")
	case bytes.HasPrefix(head, gzipMagic):
		unzipped, err := gzip.NewReader(in)
		if err != nil {
			return fmt.Errorf("unpacking gzip: %w", err)
		}
		return unwrap(to, &limitedReader{from: unzipped, left: max + 1<<20}, name, max, depth-1)
	case len(head) > tarMagicOffset && bytes.HasPrefix(head[tarMagicOffset:], []byte("ustar")):
		return copyMember(to, tar.NewReader(in), name, max)
	case bytes.HasPrefix(head, zstdMagic):
		return errors.New("the module is compressed with zstd, which is not supported; use gzip")
	}
	return errors.New("the content is not a WebAssembly module, a gzip file or a tar archive")
}

// copyMember extracts the first module in archive whose base name is name, or the first module if name is empty.
func copyMember(to io.Writer, archive *tar.Reader, name string, max int64) error {
	for range maxMembers {
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
		return errors.New("the archive contains no WebAssembly module")
	}
	return fmt.Errorf("the archive contains no WebAssembly module %s", name)
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

// limitedReader is a reader that fails with errTooLarge after left bytes.
type limitedReader struct {
	from io.Reader
	left int64
}

func (c *limitedReader) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errTooLarge
	}
	n, err := c.from.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// noEOF replaces nil and io.EOF by io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
