package envoy

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
)

func TestEnvoyOutlivesTheThreadThatAskedForIt(t *testing.T) {
	path := script(t, t.TempDir(), "envoy", "exec sleep 600")
	var p *Process
	tid := onDyingThread(func() {
		var err error
		if p, err = Start(Config{Path: path}); err != nil {
			t.Error(err)
		}
	})
	task := filepath.Join("/proc/self/task", strconv.Itoa(tid))
	eventually(t, "the end of the asking thread", func() bool { _, err := os.Stat(task); return err != nil })
	if gone(p.PID()) {
		t.Errorf("Envoy ended with the thread: %s", p.Exit())
	}
	p.Stop(ended())
}

// onDyingThread calls f on a thread that ends afterwards, and gives its id. The process's first thread never ends, so a
// goroutine that finds itself there keeps it occupied and leaves the work to another.
func onDyingThread(f func()) (tid int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if tid = syscall.Gettid(); tid == os.Getpid() {
			tid = onDyingThread(f)
			runtime.UnlockOSThread()
			return
		}
		f()
	}()
	<-done
	return tid
}
