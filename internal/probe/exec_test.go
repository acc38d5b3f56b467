package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func command(timeout time.Duration, c ...string) Spec {
	return Spec{Exec: &Exec{Command: c}, Timeout: timeout}
}

func TestCommandIsWellWhenItEndsWithZero(t *testing.T) {
	for _, c := range []struct {
		name, want string
		spec       Spec
	}{
		{"zero", "", command(soon, "true")},
		{"no timeout", "", command(0, "true")},
		{"much output", "", command(soon, "sh", "-c", "head -c 1000000 /dev/zero")},
		{"leaves somebody behind", "", command(soon, "sh", "-c", "sleep 3 >/dev/null 2>&1 &")},
		{"code", "exit status 3: the disk is full", command(soon, "sh", "-c", "echo the disk is full >&2; exit 3")},
		{"signal", "signal: killed", command(soon, "sh", "-c", "kill -9 $$")},
		{"not found", "not found", command(soon, "pilotfish-no-such-command")},
		{"nothing", "no command", command(soon)},
		{"too slow", "no response within 50ms", command(50*time.Millisecond, "sleep", "60")},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := prober(t, Config{}).Check(t.Context(), c.spec)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if err != nil && len(err.Error()) > 2*maxOutput {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func TestCommandThatIsTooSlowEndsWithAllThatItStarted(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	// The shell does not exit by itself, and its child process has the output open. The test waits until the shell has
	// started the child before the timeout.
	spec := command(2*time.Second, "sh", "-c", fmt.Sprintf("sleep 60 & echo $! >%s; wait", file))
	if err := prober(t, Config{}).Check(t.Context(), spec); err == nil {
		t.Fatal("the probe succeeded")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the child process exits", func() error {
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && !strings.Contains(string(state), ") Z ") && syscall.Kill(pid, 0) == nil {
			return fmt.Errorf("process %d still exists: %s", pid, state)
		}
		return nil
	})
}
