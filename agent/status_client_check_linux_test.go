package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/agent/config"
	"github.com/pilotfish-mesh/pilotfish/internal/owner"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestStatusPortRejectsRequestsFromEnvoy(t *testing.T) {
	const other = 65534
	for _, c := range []struct {
		name    string
		root    bool // the case needs root
		uid     int  // of the client
		isEnvoy bool
		users   string
		end     bool // the client exits before the check
		want    string
	}{
		{name: "an operator's command, with Envoy's user", users: config.AnyUser},
		{name: "Envoy", isEnvoy: true, users: config.AnyUser, want: errFromEnvoy.Error()},
		{name: "Envoy of another user", root: true, uid: other, isEnvoy: true, users: config.AnyUser, want: errFromEnvoy.Error()},
		{name: "a client that has ended", end: true, users: config.AnyUser, want: errUnknownClient.Error()},
		{name: "another user", root: true, uid: other, users: config.AnyUser},
		{name: "another user where only the agent's may", root: true, uid: other, users: config.OwnUser, want: "user 65534"},
		{name: "the agent's user where only that may", users: config.OwnUser},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.root && os.Geteuid() != 0 {
				t.Skip("needs root, to start a process of another user")
			}
			client := startClient(t, c.uid)
			a := &Agent{Options: Options{Config: &config.Config{StatusUsers: c.users}}}
			if c.isEnvoy {
				a.envoyPIDs.members = map[int]bool{client.pid: true}
			}
			if c.end {
				client.end(t)
			}
			err := a.checkCaller(client.conn.RemoteAddr().(*net.TCPAddr).AddrPort(), client.conn.LocalAddr().(*net.TCPAddr).AddrPort())
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestCallerUserDecidesIfFilesAreInvisible(t *testing.T) {
	client := startClient(t, 0)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]error{uint32(os.Geteuid()): errFromEnvoy, uint32(os.Geteuid()) + 1: nil} {
		a := &Agent{Options: Options{Config: &config.Config{StatusUsers: config.AnyUser, Envoy: config.Envoy{User: &owner.Owner{UID: uid}}}}}
		a.envoyPIDs.members = map[int]bool{ended.Process.Pid: true} // as invisible as a process of another user with hidepid
		err := a.checkCaller(client.conn.RemoteAddr().(*net.TCPAddr).AddrPort(), client.conn.LocalAddr().(*net.TCPAddr).AddrPort())
		if !errors.Is(err, want) {
			t.Errorf("Envoy's user %d: %v, want %v", uid, err, want)
		}
	}
}

// client is a process with a connection to the test.
type client struct {
	pid  int
	conn net.Conn
}

// startClient starts a process as user uid (0: the test's own user) and accepts its connection.
func startClient(t *testing.T, uid int) client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cmd := exec.Command("bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; exec sleep 60", l.Addr().(*net.TCPAddr).Port))
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{pid: cmd.Process.Pid, conn: conn}
}

// end kills the process and waits until the kernel has closed the process's socket.
func (c client) end(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(c.pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the client's socket is closed", func() error {
		if n, err := c.conn.Read(make([]byte, 1)); n != 0 || err == nil {
			return fmt.Errorf("%d bytes, %v", n, err)
		}
		return nil
	})
}
