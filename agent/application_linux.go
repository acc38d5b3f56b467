package agent

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownChild makes the kernel tell the child to end when this process is gone, whichever way that ends. It holds the thread,
// on which that hangs.
func ownChild(cmd *exec.Cmd, shared bool) (release func()) {
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: !shared}
	return runtime.UnlockOSThread
}

func killApplicationGroup(pgid int) { _ = syscall.Kill(-pgid, syscall.SIGKILL) }

// inForeground says whether this process belongs to the foreground of a terminal, whose keys send signals to all of its
// process group.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}
