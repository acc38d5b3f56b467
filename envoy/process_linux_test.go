package envoy

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// helperTrace traces the process in its argument, so that the process cannot end while this helper runs, even after
// SIGKILL. The process stops for its tracer when it ends, like one that waits for a hung disk.
func helperTrace() {
	runtime.LockOSThread() // the tracer is a thread
	pid, _ := strconv.Atoi(os.Args[1])
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0); errno != 0 {
		fmt.Println(errno)
		return
	}
	fmt.Println("held")
	select {}
}

func TestStopReturnsIfKernelDoesNotEndEnvoy(t *testing.T) {
	ready := make(chan string, 1)
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", "echo ready; exec sleep 1000"), Output: sendFirstLine(ready)})
	<-ready
	holder := helper(t, "hold", strconv.Itoa(p.PID()))
	if said := readLine(t, holder); said != "held" {
		t.Skipf("processes cannot be traced on this machine: %s", said)
	}
	if where := p.HungThreads(); where != "" {
		t.Errorf("before its end: %s", where)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it was killed and is still there", func() bool { return strings.Contains(p.HungThreads(), "is in state t at ") })
	began := time.Now()
	e := p.Stop(expiredContext())
	if took := time.Since(began); took < killGrace {
		t.Errorf("Stop returned after %v, want %v", took, killGrace)
	}
	if e.Reason != Stopped || !e.Forced || e.ExitCode() != 128+int(syscall.SIGKILL) || !strings.Contains(e.HungThreads, "is in state t at ") {
		t.Errorf("Exit = %+v, want one that was forced and describes the threads", e)
	}
	if !strings.Contains(e.String(), "has not ended 6s after SIGKILL; no longer waiting for it (thread ") || len(e.Tail) != 1 {
		t.Errorf("it is reported as %q with the last lines %q", e, e.Tail)
	}
	if hasEnded(p.PID()) {
		t.Error("the process ended although it was traced")
	}
	_ = holder.Process.Kill()
	<-p.Terminated()
	if where := p.HungThreads(); where != "" || !hasEnded(p.PID()) {
		t.Errorf("after its end: %s", where)
	}
}
