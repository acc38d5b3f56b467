package command

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// setPdeathsig configures cmd so that the kernel sends SIGTERM to the child when this process dies. The kernel also
// sends the signal when the calling OS thread exits. The goroutine therefore stays locked to the thread until the
// caller calls release.
func setPdeathsig(cmd *exec.Cmd, shared bool) (release func()) {
	runtime.LockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM, Setpgid: !shared}
	return runtime.UnlockOSThread
}

func killApplicationGroup(pgid int) { _ = syscall.Kill(-pgid, syscall.SIGKILL) }

// isInForeground reports whether this process is in the foreground process group of its terminal. That group receives the
// signals of keys such as Ctrl-C.
func isInForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	return err == nil && group == syscall.Getpgrp()
}
