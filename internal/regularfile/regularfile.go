// Package regularfile reads only regular files, because another kind of file may be in place of the expected one. To
// open a pipe would block until a process writes to it, and to read a file of unlimited size would exhaust the memory.
package regularfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Open opens a file for reading. If it is not a regular file, for example a pipe, Open returns an error and does not
// block.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file (%s)", path, info.Mode().Type())
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Read reads a file of at most maxSize bytes. A larger file is an error.
func Read(path string, maxSize int64) ([]byte, error) {
	f, _, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readAll(f, maxSize)
}

func readAll(f *os.File, maxSize int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > maxSize {
		return nil, fmt.Errorf("%s is larger than %d bytes", f.Name(), maxSize)
	}
	return text, nil
}
