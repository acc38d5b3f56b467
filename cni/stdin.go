package cni

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// mostStdin bounds a configuration, with the result of the plugins before ours in it. Runtimes hand over a few KiB; what is
// larger would only be kept in memory, once for each pod that starts.
const mostStdin = 4 << 20

// stdinTime bounds how long a runtime may take to hand it over.
const stdinTime = 30 * time.Second

// takeConfig reads what the runtime writes, within bounds, and has it read from there: the library would read on for ever.
func (p *Plugin) takeConfig() *types.Error {
	switch os.Getenv("CNI_COMMAND") {
	case "", "VERSION": // to which nothing is handed over
		return nil
	}
	text, err := readWithin(os.Stdin, mostStdin, stdinTime)
	if err != nil {
		return types.NewError(types.ErrIOFailure, "the configuration that the runtime hands over cannot be read", err.Error())
	}
	r, w, err := os.Pipe()
	if err != nil {
		return types.NewError(types.ErrIOFailure, "the configuration cannot be handed on", err.Error())
	}
	go func() {
		_, _ = w.Write(text)
		_ = w.Close()
	}()
	os.Stdin = r
	return nil
}

// readWithin reads to the end, which has to come within a size and a time.
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
