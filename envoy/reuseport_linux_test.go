package envoy

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const sharedBootstrap = `
admin: {address: {pipe: {path: %[1]s}}}
static_resources:
  listeners:
  - name: echo
    stat_prefix: echo
    address: {socket_address: {address: 127.42.30.1, port_value: 8080}}
    filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]
`

func TestSteeredConnectionsReachTheNewerEnvoy(t *testing.T) {
	dir := t.TempDir()
	var processes [2]*Process
	var admins [2]*Admin
	for i := range processes {
		name := fmt.Sprintf("%d.yaml", i)
		socket := fmt.Sprintf("%d.sock", i)
		if err := os.WriteFile(filepath.Join(dir, name), fmt.Appendf(nil, sharedBootstrap, socket), 0o600); err != nil {
			t.Fatal(err)
		}
		processes[i] = start(t, Config{Path: testenv.Envoy(t), Args: Options{ConfigPath: name, Concurrency: 2}.Args(), Dir: dir})
		admins[i] = NewAdmin(filepath.Join(dir, socket))
		defer admins[i].Close()
		waitReady(t, processes[i], admins[i])
	}
	taken := func(i int) uint64 {
		stats, err := admins[i].Stats(t.Context(), `^listener\.echo\.downstream_cx_total$`)
		if err != nil {
			t.Fatal(err)
		}
		return stats["listener.echo.downstream_cx_total"]
	}
	connect := func(n int) {
		for range n {
			c, err := net.Dial("tcp", "127.42.30.1:8080")
			if err != nil {
				t.Fatal(err)
			}
			_, err = fmt.Fprint(c, "x")
			if err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			if err != nil {
				t.Fatal(err)
			}
			_ = c.Close()
		}
	}

	s, err := SteerConnections(processes[0], processes[1])
	if err != nil || s.PortCount() != 1 {
		t.Fatalf("%d ports steered: %v", s.PortCount(), err)
	}
	connect(50)
	if err := s.ExcludeOld(); err != nil {
		t.Fatal(err)
	}
	connect(50)
	if old, young := taken(0), taken(1); old != 0 || young != 100 {
		t.Errorf("of 100 connections the older Envoy got %d, the newer %d", old, young)
	}
	s.Stop()
	connect(100) // probability that one Envoy gets all 100: 1 in 2^99
	if old, young := taken(0), taken(1); old == 0 || young == 100 {
		t.Errorf("once steering ended, the older Envoy got %d of 100, the newer %d", old, young-100)
	}
	if err := syscall.Kill(processes[0].PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := processes[0].CloseListeners(); err != nil {
		t.Fatal(err)
	}
	connect(100) // a connection to the older Envoy would hang
}

func TestSharedSocketsAreNotClosed(t *testing.T) {
	const listen = `exec python3 -c '
import signal, socket, subprocess
def listener():
    s = socket.create_server(("127.42.30.2", 0))
    s.set_inheritable(True)
    return s
shared = listener()
other = subprocess.Popen(["sleep", "1000"], close_fds=False)
own = listener()
print(shared.getsockname()[1], own.getsockname()[1], flush=True)
signal.pause()
'`
	ready := make(chan string, 1)
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", listen), Output: sendFirstLine(ready)})
	var shared, own int
	if _, err := fmt.Sscan(<-ready, &shared, &own); err != nil {
		t.Fatal(err)
	}
	if err := p.CloseListeners(); err != nil {
		t.Fatal(err)
	}
	for port, open := range map[int]bool{shared: true, own: false} {
		c, err := net.Dial("tcp", fmt.Sprintf("127.42.30.2:%d", port))
		if (err == nil) != open {
			t.Errorf("port %d: %v, want it open: %v", port, err, open)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

// runAsUnprivileged calls do on a thread that runs as an unprivileged user.
func runAsUnprivileged(t *testing.T, do func() error) error {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the user")
	}
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this goroutine
		_, _, group := syscall.RawSyscall(syscall.SYS_SETRESGID, unprivilegedUID, unprivilegedUID, unprivilegedUID)
		_, _, user := syscall.RawSyscall(syscall.SYS_SETRESUID, unprivilegedUID, unprivilegedUID, unprivilegedUID)
		if group != 0 || user != 0 {
			failed <- errors.Join(group, user)
			return
		}
		failed <- do()
	}()
	return <-failed
}

const unprivilegedUID = 65534

// Only root can inspect an Envoy with file capabilities. Such an Envoy may share sockets with the Envoy to stop.
func TestSocketsOfUnreadableProcessAreNotClosed(t *testing.T) {
	l, err := net.Listen("tcp", "127.42.30.3:0")
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	sleeper := func(user uint32) *exec.Cmd {
		t.Helper()
		c := exec.Command("sleep", "1000")
		c.ExtraFiles = []*os.File{f}
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		if err := c.Start(); err != nil {
			t.Skipf("cannot start a process as another user: %v", err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c
	}
	p, other := sleeper(unprivilegedUID), sleeper(0)
	_, _ = l.Close(), f.Close()
	connect := func() error {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_ = c.Close()
		}
		return err
	}
	closeP := func() error { return closeListeners(p.Process.Pid) }
	if err := runAsUnprivileged(t, closeP); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), strconv.Itoa(other.Process.Pid)) {
		t.Errorf("%v, want an error that process %d cannot be inspected", err, other.Process.Pid)
	}
	if err := connect(); err != nil {
		t.Errorf("it was closed: %v", err)
	}
	if err := runAsUnprivileged(t, func() error { return closeListeners(other.Process.Pid) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("closing the listeners of a process that cannot be inspected: %v", err)
	}
	_ = other.Process.Kill() // it becomes a zombie
	testenv.Eventually(t, "no other process has the socket open", func() error { return runAsUnprivileged(t, closeP) })
	if connect() == nil {
		t.Error("it is still open")
	}
}
