package logging

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

// logTarget writes to all targets of a log. An error of one target does not affect the others.
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
		case targetStdout, "/dev/stdout": // under systemd, stdout and stderr are sockets, which cannot be opened by path
			t.streams = append(t.streams, stdout)
		case targetStderr, "/dev/stderr":
			t.streams = append(t.streams, stderr)
		default:
			f, err := openLogFile(name)
			if err != nil {
				_ = t.close()
				return nil, fmt.Errorf("--log_target: %w: name a file in an existing, writable directory", err)
			}
			t.paths, t.files = append(t.paths, name), append(t.files, f)
		}
	}
	return t, nil
}

func openLogFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
}

// Write writes to all targets and returns the joined errors.
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
			errs = append(errs, fmt.Errorf("continuing with the old log file: %w", err))
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

// IgnoreSIGPIPE prevents the process from dying when its log reader has exited: the restart of a log collector must not
// stop a proxy. It installs a handler for SIGPIPE instead of ignoring the signal, because child processes would inherit
// the ignored signal.
func IgnoreSIGPIPE() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }
