//go:build unix

package probe

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the kill at the end of the time reach all that the command started.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = groupAttributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
