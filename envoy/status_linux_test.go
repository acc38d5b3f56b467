package envoy

import (
	"os/exec"
	"testing"
)

func TestExitStatusIsEqualBeforeAndAfterReaping(t *testing.T) {
	for _, script := range []string{"exit 0", "exit 3", "exit 255", "kill -TERM $$", "kill -KILL $$", "ulimit -c unlimited; kill -ABRT $$"} {
		t.Run(script, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", script)
			cmd.Dir = t.TempDir() // for a core file
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			status, ok := awaitZombie(cmd.Process.Pid)
			_ = cmd.Wait()
			if want := cmd.ProcessState.Sys(); !ok || want != status {
				t.Errorf("%#x (%v), want %#x", status, ok, want)
			}
		})
	}
}
