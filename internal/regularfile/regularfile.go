// Package regularfile reads files where something else may be in their place: who opens a pipe waits for its writer, and
// what is not bounded fills the memory.
package regularfile

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// Open opens a file for reading. What is no plain file is refused, and not waited for.
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

// Read reads a file of that many bytes at most; a larger one is an error.
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
