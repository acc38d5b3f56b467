package translate_test

import (
	"os/exec"
	"syscall"
)

// dieWithTest makes the kernel kill a process when the test process ends.
func dieWithTest(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
