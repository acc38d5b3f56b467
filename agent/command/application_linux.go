package command

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// setPdeathsig makes the kernel send SIGTERM to the child when this process dies for any reason. The setting belongs to
// the calling thread, which stays locked until release.
func setPdeathsig(cmd *exec.Cmd, shared bool) (release func()) {
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: !shared}
	return runtime.UnlockOSThread
}

func killApplicationGroup(pgid int) { _ = syscall.Kill(-pgid, syscall.SIGKILL) }

// isInForeground reports whether this process is in the foreground process group of its terminal, which receives the
// signals of terminal keys.
func isInForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}
