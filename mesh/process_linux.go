package mesh

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// childAttributes put a child into a process group of its own, and have the kernel kill it when we die.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until the child has ended, and leaves it unreaped: until then nobody else can get its number.
func awaitExit(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// killGroup signals a process group. That it is gone already is no error: that is what was wanted.
func killGroup(pid int, signal syscall.Signal) { _ = syscall.Kill(-pid, signal) }

// guardAttributes put the guard into a session of its own: no Ctrl-C and no closed terminal reach it.
func guardAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }
