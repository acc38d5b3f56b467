package translate_test

import (
	"os/exec"
	"syscall"
)

// dieWithTest has the kernel end a process when the test's process ends, however it does.
func dieWithTest(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
