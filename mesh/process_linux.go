package mesh

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes returns attributes with which a child starts in its own process group, and the kernel kills it when
// its starting thread ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until the child has ended. It does not reap the child, so the kernel cannot reuse the process ID yet.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// killGroup sends a signal to a process group. It ignores a group that no longer exists.
func killGroup(pid int, signal syscall.Signal) { _ = syscall.Kill(-pid, signal) }

// guardAttributes returns attributes with which the guard starts in its own session. It then receives no SIGINT or
// SIGHUP from the terminal.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
