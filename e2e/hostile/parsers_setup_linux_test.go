package hostile

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// parserProcess is a process that reads hostile input until the test ends.
type parserProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	log *testenv.Buffer
}

func startParser(t *testing.T, cmd *exec.Cmd) *parserProcess {
	t.Helper()
	p := &parserProcess{t: t, cmd: cmd, log: &testenv.Buffer{}}
	cmd.Stdout, cmd.Stderr = p.log, p.log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	return p
}

// startParser starts pilotfish in the machine's network.
func (m *cloudMachine) startParser(args ...string) *parserProcess {
	m.t.Helper()
	cmd := exec.Command(testenv.Bin(m.t, "pilotfish"), args...)
	log, _ := m.Start(m.t, cmd)
	return &parserProcess{t: m.t, cmd: cmd, log: log}
}

// checkMemory fails the test if the process ever had more memory resident.
func (p *parserProcess) checkMemory(maxBytes int64) {
	p.t.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), "status"))
	if err != nil {
		p.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		p.t.Fatal(err)
	}
	if kib<<10 > maxBytes {
		p.t.Errorf("the process used %d MiB, more than %d", kib>>10, maxBytes>>20)
	}
}

// maxMemoryOf returns the most memory that a process had that has ended.
func maxMemoryOf(cmd *exec.Cmd) int64 {
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss << 10
}

// metadataPrint returns what a command of the agent prints with an environment.
func metadataPrint(t *testing.T, command string, environment ...string) string {
	t.Helper()
	cmd := exec.Command(testenv.Bin(t, "pilotfish-agent"), command)
	cmd.Dir = t.TempDir()
	cmd.Env = append(environment, "PATH="+os.Getenv("PATH"), "INSTANCE_IP=127.0.0.1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
