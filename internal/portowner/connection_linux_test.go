package portowner

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

func TestTheProcessAtTheOtherEndIsFound(t *testing.T) {
	for _, c := range []struct{ name, network, listen, dial string }{
		{"IPv4", "tcp4", "127.0.0.1:0", ""},
		{"IPv4 at a listener of both", "tcp", "[::]:0", "127.0.0.1"},
		{"IPv6", "tcp6", "[::1]:0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			client, server := connect(t, c.network, c.listen, c.dial)
			found, err := FindConnection(addrPort(server.RemoteAddr()), addrPort(server.LocalAddr()))
			if err != nil {
				t.Fatal(err)
			}
			if found.UID != uint32(os.Geteuid()) {
				t.Errorf("uid %d", found.UID)
			}
			if open, err := found.IsOpenIn(os.Getpid()); err != nil || !open {
				t.Errorf("in this process: %v, %v", open, err)
			}
			other := exec.Command("sleep", "60")
			if err := other.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
			if open, err := found.IsOpenIn(other.Process.Pid); err != nil || open {
				t.Errorf("in another process: %v, %v", open, err)
			}
			_ = client.Close()
			if again, err := FindConnection(addrPort(server.RemoteAddr()), addrPort(server.LocalAddr())); err == nil {
				t.Errorf("a process is reported for a closed connection: %+v", again)
			}
		})
	}
}

func TestFilesThatAreNotVisibleAreAnError(t *testing.T) {
	_, server := connect(t, "tcp", "127.0.0.1:0", "")
	found, err := FindConnection(addrPort(server.RemoteAddr()), addrPort(server.LocalAddr()))
	if err != nil {
		t.Fatal(err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if open, err := found.IsOpenIn(ended.Process.Pid); err == nil {
		t.Errorf("a process that has exited is reported to have the connection open: %v", open)
	}
}

func TestTheUserOfAConnectionIsFound(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("starting a process of another user requires root")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	port := l.Addr().(*net.TCPAddr).AddrPort().String()
	cmd := exec.Command("bash", "-c", "exec 3<>/dev/tcp/"+strings.Replace(port, ":", "/", 1)+"; sleep 60")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); _ = cmd.Wait() })
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	if found, err := FindConnection(addrPort(server.RemoteAddr()), addrPort(server.LocalAddr())); err != nil || found.UID != 65534 {
		t.Errorf("%+v, %v", found, err)
	}
}

// connect returns both sockets of a connection. If dial is empty, it connects to the listener's address.
func connect(t *testing.T, network, listen, dial string) (client, server net.Conn) {
	t.Helper()
	l, err := net.Listen(network, listen)
	if err != nil {
		t.Skipf("no %s here: %v", network, err)
	}
	defer func() { _ = l.Close() }()
	to := addrPort(l.Addr())
	if dial != "" {
		to = netip.AddrPortFrom(netip.MustParseAddr(dial), to.Port())
	}
	if client, err = net.Dial("tcp", to.String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	return client, server
}

func addrPort(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }
