package redirect

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is what the command sees of the process that it runs in.
type Process struct {
	// Env looks a variable of the environment up.
	Env func(name string) (value string, set bool)
	// Root is before the absolute names of the files that are read; "" for none.
	Root string
}

func (p Process) env(name string) string {
	if p.Env == nil {
		return ""
	}
	value, _ := p.Env(name)
	return value
}

// maxFile bounds what is read of a file.
const maxFile = 4 << 20

func (p Process) open(name string) (*os.File, error) { return os.Open(filepath.Join(p.Root, name)) }

// eachLine stops when f says that it has seen enough.
func (p Process) eachLine(name string, f func(line string) (enough bool)) error {
	file, err := p.open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxFile))
	for lines.Scan() {
		if f(lines.Text()) {
			return nil
		}
	}
	return lines.Err()
}

// ExitError is an error with an exit code of its own.
type ExitError struct {
	Err  error
	Code int // what the process should end with
}

func (e *ExitError) Error() string { return e.Err.Error() }

func (e *ExitError) Unwrap() error { return e.Err }

// exitUsage is for wrong flags and options, exitNotCaptured for traffic that is not captured, as Istio's validator.
const (
	exitUsage       = 2
	exitNotCaptured = 126
)

func usage(err error) error { return &ExitError{err, exitUsage} }

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// netAdmin is the number of CAP_NET_ADMIN.
const netAdmin = 12

// checkPrivileges tells before anything is touched that the kernel would refuse.
func (p Process) checkPrivileges(options string) error {
	var held uint64 = 1 << netAdmin // where the kernel does not say
	_ = p.eachLine("/proc/self/status", func(line string) bool {
		hex, found := strings.CutPrefix(line, "CapEff:")
		if n, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64); found && err == nil {
			held = n
		}
		return found
	})
	if held&(1<<netAdmin) != 0 {
		return nil
	}
	return fmt.Errorf("%s: this process lacks the privilege CAP_NET_ADMIN: run it as root with "+
		"securityContext.capabilities.add: [NET_ADMIN, NET_RAW], or have the CNI plugin do it", options)
}

// logger writes to w for people, or as JSON.
func logger(w io.Writer, asJSON bool, level string) *slog.Logger {
	o := &slog.HandlerOptions{}
	if strings.Contains(level, "debug") {
		o.Level = slog.LevelDebug
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
