package envoy

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/owner"
)

func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// dieWithOwner makes the kernel kill the child when the calling thread ends, for whatever reason.
func dieWithOwner(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// runAs has the child run as another user, with no group but that user's.
func runAs(cmd *exec.Cmd, user *owner.Owner) {
	if user != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID}
	}
}

func holdThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// awaitZombie waits until the process has ended, without reaping it. It is false where the kernel does not offer that.
func awaitZombie(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}

func signalGroup(pgid int, s syscall.Signal) error {
	if err := syscall.Kill(-pgid, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func killGroup(pgid int) error { return signalGroup(pgid, syscall.SIGKILL) }
