package mesh

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// guardOf returns the process ID of the guard for a runtime directory; 0 if there is none.
func guardOf(runtimeDir string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if strings.Contains(string(text), "\x00guard\x00"+runtimeDir+"\x00") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

func TestKilledGuardIsRestarted(t *testing.T) {
	top, dir := testTopology(t, oneApp), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "guarded", "fake-agent")
	for range 2 {
		first := guardOf(dir)
		if first == 0 {
			t.Fatal("no guard process runs")
		}
		if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another guard", func() bool { pid := guardOf(dir); return pid != 0 && pid != first })
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all processes end", func() bool { return len(processesWithVariable(runVariable+"="+run)) == 0 })
	eventually(t, "all files are removed", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
}
