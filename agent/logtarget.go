package agent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
)

const (
	targetStdout = "stdout"
	targetStderr = "stderr"
)

// logTarget writes to all places that a log goes to. One that fails costs the others nothing.
type logTarget struct {
	mu      sync.Mutex
	streams []io.Writer
	paths   []string
	files   []*os.File // in the order of paths
}

func openTarget(names []string, stdout, stderr io.Writer) (*logTarget, error) {
	t := &logTarget{}
	for _, name := range names {
		switch name = strings.TrimSpace(name); name {
		case "":
		case targetStdout, "/dev/stdout": // which cannot be opened where it is a socket, as under systemd
			t.streams = append(t.streams, stdout)
		case targetStderr, "/dev/stderr":
			t.streams = append(t.streams, stderr)
		default:
			f, err := openLogFile(name)
			if err != nil {
				_ = t.close()
				return nil, usagef("--log_target: %w: name a file in a directory that is there and may be written to", err)
			}
			t.paths, t.files = append(t.paths, name), append(t.files, f)
		}
	}
	return t, nil
}

func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// Write writes to each place, and gives the errors of those that failed.
func (t *logTarget) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, w := range t.streams {
		_, err := w.Write(p)
		errs = append(errs, err)
	}
	for _, f := range t.files {
		_, err := f.Write(p)
		errs = append(errs, err)
	}
	return len(p), errors.Join(errs...)
}

func (t *logTarget) reopen() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for i, path := range t.paths {
		f, err := openLogFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("the log file stays as it was: %w", err))
			continue
		}
		_ = t.files[i].Close()
		t.files[i] = f
	}
	return errors.Join(errs...)
}

func (t *logTarget) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, f := range t.files {
		errs = append(errs, f.Close())
	}
	t.paths, t.files = nil, nil
	return errors.Join(errs...)
}

// outliveReaders keeps the process alive when nobody reads its output any more: a log collector that is started again must
// not end a proxy. SIGPIPE is taken rather than ignored, since programs that are started would ignore it too.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
