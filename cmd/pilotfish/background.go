package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// `up --detach` starts a second process of this program in the background. The background process writes its output to a
// pipe until the workloads are ready, and then one line with the result. The foreground process prints the output.

const (
	reportPrefix = "\x00report "
	reportReady  = "ready"
	logFile      = "up.log"
	maxLogSize   = 16 << 20
)

// runDetached starts the mesh in a background process, and waits until the mesh is ready or has failed.
func (o upOptions) runDetached(c *cobra.Command) error {
	t, err := o.load()
	if err != nil {
		return err
	}
	if _, err := o.newMesh(t); err != nil {
		return err
	}
	child, progress, err := startDetached()
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	interrupted, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	defer context.AfterFunc(interrupted, func() { _ = child.Process.Signal(syscall.SIGTERM) })()
	report := copyProgress(c.OutOrStdout(), progress)
	switch report {
	case reportReady:
		return nil
	case "":
		return detachedError(<-ended)
	}
	return fmt.Errorf("%s\nthe mesh continues to run: see `pilotfish status --name %s`, and stop it with `pilotfish down --name %s`", report, t.Name, t.Name)
}

// startDetached starts the background process in a new session. It returns the process and the read end of its output
// pipe.
func startDetached() (*exec.Cmd, io.Reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("finding the running executable: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("creating a pipe: %w", err)
	}
	defer w.Close()
	var args []string
	for _, a := range os.Args[1:] {
		if a != "--detach" && a != "-d" && a != "--detach=true" {
			args = append(args, a)
		}
	}
	cmd := exec.Command(self, append(args, "--detached")...) // #nosec G204 -- our own executable
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = detachedAttributes()
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("starting the mesh in the background: %w", err)
	}
	return cmd, r, nil
}

// copyProgress prints the output of the background process. It returns the process's report, or "" if the process exited
// without one.
func copyProgress(out io.Writer, progress io.Reader) string {
	lines := bufio.NewReader(progress)
	for {
		line, err := lines.ReadString('\n')
		if report, ok := strings.CutPrefix(line, reportPrefix); ok {
			return strings.ReplaceAll(strings.TrimSpace(report), "\x00", "\n")
		}
		_, _ = io.WriteString(out, line)
		if err != nil {
			return ""
		}
	}
}

// detachedError returns the error if the background process exited before the mesh was ready. err is the result of
// waiting for the process, whose output has already been printed.
func detachedError(err error) error {
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitUsage:
		return usageError{errQuiet}
	case err != nil:
		return errQuiet
	}
	return errors.New("the mesh stopped before its workloads were ready")
}

// output is the output of `up`. In the foreground, it writes to the terminal. In the background, it writes to the log
// file and, until the workloads are ready, to the pipe to the foreground process.
type output struct {
	mu       sync.Mutex
	terminal io.Writer
	logPath  string
	log      *os.File
	size     int64
}

// detach makes the output also write to the log file in the directory of m, once that directory exists. The background
// process calls it.
func (o *output) detach(m *mesh.Mesh) { o.logPath = filepath.Join(m.RuntimePath(), logFile) }

// Write never returns an error, so that the mesh continues to run if the terminal is closed.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.terminal != nil {
		_, _ = o.terminal.Write(p)
	}
	o.writeLog(p)
	return len(p), nil
}

func (o *output) writeLog(p []byte) {
	if o.logPath == "" {
		return
	}
	if o.log != nil && o.size > maxLogSize {
		_ = o.log.Close()
		o.log, o.size = nil, 0
		_ = os.Rename(o.logPath, o.logPath+".1")
	}
	if o.log == nil {
		f, err := os.OpenFile(o.logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return // the mesh's directory does not exist yet, or was already removed
		}
		o.log = f
	}
	n, _ := o.log.Write(p)
	o.size += int64(n)
}

// report sends the result of the start to the foreground process, and closes the pipe.
func (o *output) report(err error) {
	if errors.Is(err, mesh.ErrEnded) {
		return // the background process prints Run's error itself, and its exit status reports the failure
	}
	text := reportReady
	if err != nil {
		text = strings.ReplaceAll(err.Error(), "\n", "\x00")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		fmt.Fprintf(o.terminal, "The output of the mesh is in %s.\n", o.logPath)
	}
	fmt.Fprintf(o.terminal, "%s%s\n", reportPrefix, text)
	o.terminal = nil
	silence()
}
