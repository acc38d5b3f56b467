package envoy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
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

// remains says what the kernel knows of a process that does not end: the state of each of its threads, and the function in
// which it waits. It reads nothing that needs the process's memory, which may be locked.
func remains(pid int) string {
	const most = 20
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	var told []string
	for _, thread := range threads[:min(len(threads), most)] {
		stat, err := os.ReadFile(filepath.Join(thread, "stat"))
		if err != nil {
			continue // it has ended
		}
		state := "?"
		if fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(fields) > 0 {
			state = fields[0]
		}
		where, _ := os.ReadFile(filepath.Join(thread, "wchan"))
		told = append(told, fmt.Sprintf("thread %s is in state %s at %s", filepath.Base(thread), state, cmp.Or(string(where), "?")))
	}
	if len(told) == 0 {
		return "the kernel does not know it any more"
	}
	return strings.Join(told, ", ")
}
