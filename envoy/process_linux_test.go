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

// helperHold makes the process whose id is its argument unable to end, whoever kills it, for as long as this one runs: its end
// stops for the one that traces it, as that of another waits for a disk that does not answer.
func helperHold() {
	runtime.LockOSThread() // it is a thread that traces
	pid, _ := strconv.Atoi(os.Args[1])
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_TRACEEXIT, 0, 0); errno != 0 {
		fmt.Println(errno)
		return
	}
	fmt.Println("held")
	select {}
}

func TestEnvoyThatTheKernelDoesNotEndIsGivenUp(t *testing.T) {
	ready := make(chan string, 1)
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", "echo ready; exec sleep 1000"), Output: onlyFirst(ready)})
	<-ready
	holder := helper(t, "hold", strconv.Itoa(p.PID()))
	if said := readLine(t, holder); said != "held" {
		t.Skipf("no process may be traced here: %s", said)
	}
	if where := p.Lingers(); where != "" {
		t.Errorf("before its end: %s", where)
	}
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "that it was killed and is still there", func() bool { return strings.Contains(p.Lingers(), "is in state t at ") })
	began := time.Now()
	e := p.Stop(ended())
	if took := time.Since(began); took < killGrace {
		t.Errorf("it was given up after %v, want %v of patience", took, killGrace)
	}
	if e.Reason != Stopped || !e.Forced || e.ExitCode() != 128+int(syscall.SIGKILL) || !strings.Contains(e.Remains, "is in state t at ") {
		t.Errorf("Exit = %+v, want one that was forced and tells where it remains", e)
	}
	if !strings.Contains(e.String(), "not known 6s after SIGKILL (thread ") || len(e.Tail) != 1 {
		t.Errorf("it is told as %q with the last lines %q", e, e.Tail)
	}
	if gone(p.PID()) {
		t.Error("it ended, so there was nothing to give up")
	}
	_ = holder.Process.Kill()
	<-p.Gone()
	if where := p.Lingers(); where != "" || !gone(p.PID()) {
		t.Errorf("after its end: %s", where)
	}
}
