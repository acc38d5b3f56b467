//go:build unix

package probe

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the command run in its own process group, so that the timeout also kills its child processes.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = groupAttributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
