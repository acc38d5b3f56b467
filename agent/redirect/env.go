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

	"github.com/pilotfish-mesh/pilotfish/internal/logformat"
)

// Process is the environment in which the command runs. Tests replace it.
type Process struct {
	// Env looks up an environment variable.
	Env func(name string) (value string, set bool)
	// Root is prepended to the absolute paths of the files that the command reads; "" for none.
	Root string
}

func (p Process) env(name string) string {
	if p.Env == nil {
		return ""
	}
	value, _ := p.Env(name)
	return value
}

// maxFileSize is the maximum number of bytes that are read from a file.
const maxFileSize = 4 << 20

func (p Process) open(name string) (*os.File, error) { return os.Open(filepath.Join(p.Root, name)) }

// scanLines calls f for each line of the file name until f returns true. It reads at most maxFileSize bytes.
func (p Process) scanLines(name string, f func(line string) (enough bool)) error {
	file, err := p.open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(io.LimitReader(file, maxFileSize))
	for lines.Scan() {
		if f(lines.Text()) {
			return nil
		}
	}
	return lines.Err()
}

// ExitError is an error with its own exit code.
type ExitError struct {
	Err  error
	Code int // exit code of the process
}

func (e *ExitError) Error() string { return e.Err.Error() }

func (e *ExitError) Unwrap() error { return e.Err }

// ProcessExitCode returns the exit code of the process.
func (e *ExitError) ProcessExitCode() int { return e.Code }

// exitUsage is the exit code for invalid flags and options. exitNotCaptured is the exit code if traffic is not
// captured. Istio's validator uses the same code.
const (
	exitUsage       = 2
	exitNotCaptured = 126
)

func usageError(err error) error { return &ExitError{err, exitUsage} }

func usagef(format string, args ...any) error { return usageError(fmt.Errorf(format, args...)) }

// capNetAdmin is the number of CAP_NET_ADMIN.
const capNetAdmin = 12

// checkPrivileges returns an error if the process lacks CAP_NET_ADMIN. It is called before any change.
func (p Process) checkPrivileges(options string) error {
	var held uint64 = 1 << capNetAdmin // assume the capability if /proc is not readable
	_ = p.scanLines("/proc/self/status", func(line string) bool {
		hex, found := strings.CutPrefix(line, "CapEff:")
		if n, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64); found && err == nil {
			held = n
		}
		return found
	})
	if held&(1<<capNetAdmin) != 0 {
		return nil
	}
	return fmt.Errorf("%s: this process lacks the privilege CAP_NET_ADMIN: run it as root with "+
		"securityContext.capabilities.add: [NET_ADMIN, NET_RAW], or let the CNI plugin redirect the traffic", options)
}

// newLogger returns a logger that writes text or JSON to w. It logs debug messages if level contains "debug".
func newLogger(w io.Writer, asJSON bool, level string) *slog.Logger {
	minimum := slog.LevelInfo
	if strings.Contains(level, "debug") {
		minimum = slog.LevelDebug
	}
	if asJSON {
		return slog.New(logformat.NewJSON(w, minimum))
	}
	return slog.New(logformat.NewText(w, minimum))
}
