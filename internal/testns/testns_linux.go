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

// Namespace is a network namespace. It is deleted when its handle is closed.
type Namespace struct{ Handle netns.NsHandle }

// New creates a namespace whose loopback interface is up, until the test ends. Without root privileges, the test is
// skipped.
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

// NewNamespace creates a namespace in which all interfaces are down. The caller must close its handle. It is for tests
// with many namespaces.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{Handle: -1}
	err := onThread(func() (err error) {
		n.Handle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("creating a network namespace: %w", err)
	}
	return n, nil
}

// onThread runs f on a thread that exits afterwards, because f changes the thread's namespace. The main thread cannot
// exit, and /proc shows its namespace as that of the process, so f runs on another thread.
func onThread(f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with the goroutine
		if syscall.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			result <- onThread(f) // this goroutine occupies the main thread meanwhile
			return
		}
		result <- f()
	}()
	return <-result
}

// Run runs f on a thread in the namespace. Goroutines that f starts are not in the namespace.
func (n *Namespace) Run(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(n.Handle); err != nil {
			return err
		}
		return f()
	})
}

// Links calls f with a netlink handle for the namespace, to change its links, addresses, routes and queues.
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
	go func() { // the kernel kills the child when the thread that started it exits, so the thread waits for the child
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
			t.Logf("output of %s:\n%s", filepath.Base(cmd.Path), output)
		}
	})
	return output, done
}
