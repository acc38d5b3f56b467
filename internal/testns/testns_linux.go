package testns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Namespace is a network namespace, which ends with its test.
type Namespace struct{ Handle netns.NsHandle }

// New makes a namespace whose loopback is up. The test is skipped for users who may not.
func New(t testing.TB) *Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	n, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Handle.Close() })
	n.Links(t, func(h *netlink.Handle) error {
		lo, err := h.LinkByName("lo")
		if err != nil {
			return err
		}
		return h.LinkSetUp(lo)
	})
	return n
}

// NewNamespace makes a namespace in which everything is down, and which ends when its handle is closed: for tests of very many.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{Handle: -1}
	err := onThread(func() (err error) {
		n.Handle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	return n, nil
}

// onThread runs f on a thread that ends with it, because the thread's namespace differs from the process's afterwards.
// The main thread cannot end, and /proc shows it as the whole process, so f runs on another thread.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		if syscall.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f) // on another thread, while this goroutine occupies the main thread
			return
		}
		result <- f()
	}()
	return <-result
}

// Run runs f on a thread in the namespace, which is of no use to goroutines that f starts.
func (n *Namespace) Run(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.Handle); err != nil {
			return err
		}
		return f()
	})
}

// Links changes links, addresses, routes and queues of the namespace.
func (n *Namespace) Links(t testing.TB, f func(*netlink.Handle) error) {
	t.Helper()
	h, err := netlink.NewHandleAt(n.Handle)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if err := f(h); err != nil {
		t.Fatal(err)
	}
}

// Start runs a program in the namespace until the program or the test ends. Its output is logged when the test fails.
func (n *Namespace) Start(t testing.TB, cmd *exec.Cmd) (output *testenv.Buffer, ended <-chan struct{}) {
	t.Helper()
	output = &testenv.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started, done := make(chan error), make(chan struct{})
	go func() { // the kernel kills the child with the thread that started it, so that thread has to stay
		defer close(done)
		_ = n.Run(func() error {
			err := cmd.Start()
			started <- err
			if err == nil {
				_ = cmd.Wait()
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(cmd.Path), output)
		}
	})
	return output, done
}
