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

func setProcessGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// setDeathSignal makes the kernel kill the child when the calling thread ends.
func setDeathSignal(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// setCredential makes the child run as user, with that user's group and without supplementary groups.
func setCredential(cmd *exec.Cmd, user *owner.Owner) {
	if user != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID}
	}
}

// setNoNewPrivs sets no_new_privs for the calling thread and its child processes. It cannot be undone.
func setNoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs: %w", err)
	}
	return nil
}

// HasPrivileges reports whether a process that executes the file gains privileges: through file capabilities, or
// through a set-user-ID or set-group-ID bit.
func HasPrivileges(path string) bool {
	size, err := unix.Getxattr(path, "security.capability", nil)
	if err == nil && size > 0 {
		return true
	}
	info, err := os.Stat(path)
	return err == nil && info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0
}

func lockThread() (release func()) {
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}

// childInfo is the result of waitid(2). It has the layout of siginfo_t in the kernel's asm-generic/siginfo.h.
type childInfo struct {
	signo, errno, code int32
	_                  [unsafe.Sizeof(uintptr(0)) - 4]byte
	pid                int32
	uid                uint32
	status             int32 // the exit code, or the signal
	_                  [128]byte
}

// awaitZombie waits until the process has ended, without reaping it, and returns its status. ok is false if waitid(2)
// fails.
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

// waitStatus converts the status to the format of wait4(2).
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

// isDying reports whether the process is exiting, was ended by a signal, or has a pending SIGKILL. A process that
// writes a core file is not dying yet.
func isDying(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil || statusValue(status, "CoreDumping:") == "1" {
		return false
	}
	pending, _ := strconv.ParseUint(statusValue(status, "SigPnd:"), 16, 64)
	flags := uint64(0)
	if fields := readStat(fmt.Sprintf("/proc/%d", pid)); len(fields) > 6 {
		flags, _ = strconv.ParseUint(fields[6], 10, 64)
	}
	return pending&(1<<(syscall.SIGKILL-1)) != 0 || flags&(flagExiting|flagSignaled) != 0
}

// statusValue returns the value of the line of /proc/<pid>/status that begins with name. It returns "" if there is
// none.
func statusValue(status []byte, name string) string {
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// readStat returns the fields after the name in the file stat of a process or thread. The first is the state. It
// returns nil if the process or thread has ended.
func readStat(dir string) []string {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
}

// describeThreads returns the state of each thread of a process, and the kernel function in which the thread waits. It
// returns "" if the process has ended. It reads only files for which the kernel does not need the process's memory
// lock, because a hung thread may hold that lock.
func describeThreads(pid int) string {
	const maxThreads = 20
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	var states []string
	for _, thread := range threads[:min(len(threads), maxThreads)] {
		fields := readStat(thread)
		if len(fields) == 0 {
			continue // the thread has ended
		}
		where, _ := os.ReadFile(filepath.Join(thread, "wchan"))
		states = append(states, fmt.Sprintf("thread %s is in state %s at %s", filepath.Base(thread), fields[0], cmp.Or(string(where), "?")))
	}
	return strings.Join(states, ", ")
}
