package agent

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// startOnTerminal starts the agent in the foreground of a terminal of its own, and gives the keyboard.
func (s *setup) startOnTerminal(t *testing.T) (*running, *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	r := s.prepare(t)
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = tty, tty, tty
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	r.run(t)
	_ = tty.Close()
	read := make(chan struct{})
	go func() { defer close(read); _, _ = io.Copy(r.out, keys) }()
	t.Cleanup(func() { _ = keys.Close(); <-read })
	return r, keys
}

// command is how the agent is started: by itself, or within another program.
func (s *setup) command() *exec.Cmd {
	line := append(append([]string{}, s.within...), os.Args[0])
	line = append(line, s.args...)
	return exec.Command(line[0], line[1:]...)
}
