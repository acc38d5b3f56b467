//go:build unix

package probe

import (
	"os/exec"
	"syscall"
)

// ownGroup starts the command in its own process group, so that the kill at the timeout reaches all its child
// processes.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = groupAttributes()
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
