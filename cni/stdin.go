package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// maxStdin limits the size of the configuration, including the result of the previous plugins, in bytes. Runtimes send a
// few KiB. The plugin buffers the configuration in memory.
const maxStdin = 4 << 20

// stdinTime is the timeout for reading standard input.
const stdinTime = 30 * time.Second

// readStdin reads the configuration from standard input with a size limit and a timeout. It then replaces os.Stdin with
// a pipe that contains the configuration, because the CNI library reads os.Stdin without limits.
func (p *Plugin) readStdin() *types.Error {
	switch os.Getenv("CNI_COMMAND") {
	case "", "VERSION": // the runtime sends no configuration with these commands
		return nil
	}
	text, err := readWithin(os.Stdin, maxStdin, stdinTime)
	if err != nil {
		return types.NewError(types.ErrIOFailure, "cannot read the configuration from the runtime", err.Error())
	}
	r, w, err := os.Pipe()
	if err != nil {
		return types.NewError(types.ErrIOFailure, "cannot create a pipe for the configuration", err.Error())
	}
	go func() {
		_, _ = w.Write(text)
		_ = w.Close()
	}()
	os.Stdin = r
	return nil
}

// readWithin reads to EOF. It returns an error if the input is larger than maxSize, or if EOF does not arrive within
// timeout.
func readWithin(from io.Reader, maxSize int64, timeout time.Duration) ([]byte, error) {
	type outcome struct {
		text []byte
		err  error
	}
	read := make(chan outcome, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(from, maxSize+1))
		read <- outcome{text, err}
	}()
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case got := <-read:
		if got.err == nil && int64(len(got.text)) > maxSize {
			got.err = fmt.Errorf("the input is larger than %d MiB", maxSize>>20)
		}
		return got.text, got.err
	case <-late.C:
		return nil, errors.New("the input did not end within " + timeout.String())
	}
}
