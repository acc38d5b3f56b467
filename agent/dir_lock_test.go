package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
)

func TestSecondAgentInDirectoryIsRejected(t *testing.T) {
	s := newSetup(t, "127.141.20.1")
	defer s.cp.start(t)()
	s.args = append(s.args, "--restart")
	first := s.start(t)
	first.waitReady()
	bootstrap := filepath.Join(s.dir, config.DefaultConfigPath, config.BootstrapFile)
	before := readFile(t, bootstrap)

	second := *s
	second.env = append(append([]string{}, s.env...), "POD_NAME=other", "PROXY_BIND_ADDRESS=127.141.20.2")
	r := second.start(t)
	r.expectExit(1)
	if want := fmt.Sprintf("another agent (pid %d) runs in", first.cmd.Process.Pid); !strings.Contains(r.out.String(), want) {
		t.Errorf("the second agent does not log %q:\n%s", want, r.out)
	}
	if !bytes.Equal(before, readFile(t, bootstrap)) {
		t.Error("the second agent changed the bootstrap of the first")
	}
	if strings.Contains(first.out.String(), "displaces") {
		t.Error("an Envoy of the second agent displaced the stream of the first agent's Envoy")
	}

	// The lock is released even if the previous agent was killed.
	first.signal(syscall.SIGKILL)
	first.waitExit()
	successor := s.start(t)
	successor.waitReady()
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
