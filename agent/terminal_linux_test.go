package agent

import (
	"io"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// startOnTerminal starts the agent in the foreground of its own terminal, and returns the terminal's input.
func (s *agentSetup) startOnTerminal(t *testing.T) (*agentProcess, *os.File) {
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

// Ctrl-C signals the terminal's whole foreground process group. The agent must not forward the signal a second time.
func TestTerminalSignalsReachApplicationOnce(t *testing.T) {
	t.Parallel()
	s := newRunSetup(t, "127.107.21.1", `
		trap 'echo got INT' INT; trap 'exit 4' TERM
		test -t 0 && echo "on a terminal"; read line; echo "read $line"; while :; do sleep 0.05; done`)
	s.cp.start(t)
	r, keys := s.startOnTerminal(t)
	r.waitOutput("on a terminal")
	if _, err := keys.WriteString("words\n"); err != nil {
		t.Fatal(err)
	}
	r.waitOutput("read words")
	if _, err := keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	r.waitOutput("got INT")
	if ready, reasons, err := r.readiness(); err != nil || !ready {
		t.Errorf("after Ctrl-C the proxy is not ready any more: %v %v", reasons, err)
	}
	r.signal(syscall.SIGTERM)
	r.expectExit(4)
	if n := len(intLine.FindAllString(r.out.String(), -1)); n != 1 {
		t.Errorf("the application got %d interrupts of one key", n)
	}
}
