package testcluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a component. The kernel kills it when the test's process dies.
type process struct {
	cmd   *exec.Cmd
	log   string
	ended chan struct{}
	err   error // exit status; valid once ended is closed
}

// startProcess starts a program in a process group of its own and appends its output to the file log.
func startProcess(log, program string, args ...string) (*process, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(program, args...), log: log, ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = output, output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	// The kernel kills the child when the thread that started it exits, so the goroutine stays on that thread.
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		_ = output.Close()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", program, err)
	}
	return p, nil
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// readLogEnd returns the last bytes of the log.
func (p *process) readLogEnd() string {
	const maxBytes = 4000
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > maxBytes {
		_, _ = file.Seek(-maxBytes, io.SeekEnd)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// cleaner removes a directory when the test's process dies before it can do so.
type cleaner struct {
	cmd  *exec.Cmd
	pipe io.Closer // its end tells the cleaner that the test's process died
}

func startCleaner(dir string) (*cleaner, error) {
	// The second removal follows the death of the components, which may write until then.
	cmd := exec.Command("/bin/sh", "-c", `cat >/dev/null; rm -rf "$0"; sleep 1; rm -rf "$0"`, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C does not reach it
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("starting the removal of %s: %w", dir, err)
	}
	return &cleaner{cmd, pipe}, nil
}

// stop ends the cleaner, after which the directory is the caller's.
func (c *cleaner) stop() {
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	_ = c.pipe.Close()
	_ = c.cmd.Wait()
}
