package envoy

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

func TestEnvoyOutlivesTheThreadThatCalledStart(t *testing.T) {
	path := script(t, t.TempDir(), "envoy", "exec sleep 600")
	var p *Process
	tid := runOnEndingThread(func() {
		var err error
		if p, err = Start(Config{Path: path}); err != nil {
			t.Error(err)
		}
	})
	task := filepath.Join("/proc/self/task", strconv.Itoa(tid))
	eventually(t, "the end of the asking thread", func() bool { _, err := os.Stat(task); return err != nil })
	if hasEnded(p.PID()) {
		t.Errorf("Envoy ended with the thread: %s", p.Exit())
	}
	p.Stop(expiredContext())
}

// runOnEndingThread calls f on a thread that ends afterwards, and returns its ID. The process's first thread never
// ends, so a goroutine on it occupies it and delegates the work to another.
func runOnEndingThread(f func()) (tid int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		if tid = syscall.Gettid(); tid == os.Getpid() {
			tid = runOnEndingThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
	return tid
}
