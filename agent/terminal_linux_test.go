package agent

import (
	"io"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// startOnTerminal starts the agent in the foreground of a terminal of its own, and gives the keyboard.
func (s *setup) startOnTerminal(t *testing.T) (*running, *os.File) {
	t.Helper()
	keys, tty := testenv.Terminal(t)
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

var intLine = regexp.MustCompile(`got INT`)

// Ctrl-C goes to all of the terminal's foreground: the application must not get it a second time from the agent.
func TestKeysOfATerminalReachTheApplicationOnce(t *testing.T) {
	t.Parallel()
	s := newRun(t, "127.107.21.1", `
		trap 'echo got INT' INT; trap 'exit 4' TERM
		test -t 0 && echo "on a terminal"; read line; echo "read $line"; while :; do sleep 0.05; done`)
	s.cp.start(t)
	r, keys := s.startOnTerminal(t)
	r.says("on a terminal")
	if _, err := keys.WriteString("words\n"); err != nil {
		t.Fatal(err)
	}
	r.says("read words")
	if _, err := keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	r.says("got INT")
	if ready, reasons, err := r.reasons(); err != nil || !ready {
		t.Errorf("after Ctrl-C the proxy is not ready any more: %v %v", reasons, err)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	if n := len(intLine.FindAllString(r.out.String(), -1)); n != 1 {
		t.Errorf("the application got %d interrupts of one key", n)
	}
}
