package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// maxStdin limits the configuration, including the result of the previous plugins. Runtimes pass a few KiB; each
// starting pod would hold a larger one in memory.
const maxStdin = 4 << 20

// stdinTime limits the time to read standard input.
const stdinTime = 30 * time.Second

// readStdin reads the configuration within limits and replaces the process's standard input with it, since the CNI
// library reads without limits.
func (p *Plugin) readStdin() *types.Error {
	switch os.Getenv("CNI_COMMAND") {
	case "", "VERSION": // these have no input
		return nil
	}
	text, err := readWithin(os.Stdin, maxStdin, stdinTime)
	if err != nil {
		return types.NewError(types.ErrIOFailure, "cannot read the configuration from the runtime", err.Error())
	}
	r, w, err := os.Pipe()
	if err != nil {
		return types.NewError(types.ErrIOFailure, "cannot pass on the configuration", err.Error())
	}
	go func() {
		_, _ = w.Write(text)
		_ = w.Close()
	}()
	os.Stdin = r
	return nil
}

// readWithin reads to EOF, and returns an error if that exceeds a size or a time.
func readWithin(from io.Reader, most int64, limit time.Duration) ([]byte, error) {
	type outcome struct {
		text []byte
		err  error
	}
	read := make(chan outcome, 1)
	go func() {
		text, err := io.ReadAll(io.LimitReader(from, most+1))
		read <- outcome{text, err}
	}()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case got := <-read:
		if got.err == nil && int64(len(got.text)) > most {
			got.err = fmt.Errorf("it is larger than %d MiB", most>>20)
		}
		return got.text, got.err
	case <-late.C:
		return nil, errors.New("it did not end within " + limit.String())
	}
}
