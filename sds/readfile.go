package sds

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// mostFile is more than any bundle of certificates has.
const mostFile = 4 << 20

// readBounded reads a regular file of a tolerable size. Anything else, a pipe for instance, would keep the reader, and all
// who wait for it.
func readBounded(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a file (%s)", path, info.Mode().Type())
	}
	text, err := io.ReadAll(io.LimitReader(f, mostFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > mostFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, mostFile)
	}
	if len(text) == 0 {
		return nil, fmt.Errorf("%s: %w", path, errEmpty)
	}
	return text, nil
}

var errEmpty = errors.New("the file is empty")
