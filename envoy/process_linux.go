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
	"strconv"
	"strings"
	"syscall"
	"unsafe"

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

// childInfo is what waitid(2) says of a child: siginfo_t of the kernel's asm-generic/siginfo.h.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
	pid                int32
	uid                uint32
	status             int32 // the exit code, or the signal
	_                  [128]byte
}

// awaitZombie waits until the process has ended, without reaping it, and says how. It is not ok where the kernel does not offer
// that.
func awaitZombie(pid int) (status syscall.WaitStatus, ok bool) {
	var info childInfo
	for {
		err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil {
			return info.waitStatus(), true
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, false
		}
	}
}

// waitStatus is the same as wait4(2) tells it.
func (i *childInfo) waitStatus() syscall.WaitStatus {
	const exited, coreDumped = 1, 3 // CLD_EXITED, CLD_DUMPED
	const coreFlag = 0x80
	switch i.code {
	case exited:
		return syscall.WaitStatus(i.status << 8)
	case coreDumped:
		return syscall.WaitStatus(i.status | coreFlag)
	}
	return syscall.WaitStatus(i.status)
}

func signalGroup(pgid int, s syscall.Signal) error {
	if err := syscall.Kill(-pgid, s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func killGroup(pgid int) error { return signalGroup(pgid, syscall.SIGKILL) }

// Flags of a process in /proc/<pid>/stat, from the kernel's sched.h.
const (
	flagExiting  = 0x4
	flagSignaled = 0x400 // ended by a signal
)

// dying says whether the kernel has begun to end the process, or is to. Who writes a core file is busy with that.
func dying(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || statusOf(status, "CoreDumping:") == "1" {
		return false
	}
	pending, _ := strconv.ParseUint(statusOf(status, "SigPnd:"), 16, 64)
	flags := uint64(0)
	if fields := statOf(fmt.Sprintf("/proc/%d", pid)); len(fields) > 6 {
		flags, _ = strconv.ParseUint(fields[6], 10, 64)
	}
	return pending&(1<<(syscall.SIGKILL-1)) != 0 || flags&(flagExiting|flagSignaled) != 0
}

// statusOf gives the value of a line of /proc/<pid>/status.
func statusOf(status []byte, name string) string {
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// statOf gives what follows the name in the stat of a process or thread, beginning with its state; nothing once it is gone.
func statOf(dir string) []string {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// remains says what the kernel knows of a process that does not end: the state of each of its threads, and the function in
// which it waits; nothing when the kernel knows it no more. It reads nothing that needs the process's memory, which may be locked.
func remains(pid int) string {
	const most = 20
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	var told []string
	for _, thread := range threads[:min(len(threads), most)] {
		fields := statOf(thread)
		if len(fields) == 0 {
			continue // it has ended
		}
		where, _ := os.ReadFile(filepath.Join(thread, "wchan"))
		told = append(told, fmt.Sprintf("thread %s is in state %s at %s", filepath.Base(thread), fields[0], cmp.Or(string(where), "?")))
	}
	return strings.Join(told, ", ")
}
