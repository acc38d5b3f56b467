package uds

import (
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSocketHasItsModeAndItsDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "socket")
	l, err := Listen(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v; want mode 0660", info, err)
	}
	if got := l.Addr().String(); got != path {
		t.Errorf("the address is %s", got)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 0 {
		t.Errorf("remaining files: %v, %v", entries, err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	_ = dead.Close()
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener on a live socket: %v", err)
	}
}

func TestWhatIsNotASocketIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600); err == nil || !strings.Contains(err.Error(), "the path is not a socket") {
		t.Errorf("Listen: %v", err)
	}
	if content, err := os.ReadFile(path); err != nil || string(content) != "precious" {
		t.Errorf("the file holds %q, %v", content, err)
	}
}

func TestClosingLeavesAnothersSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	first, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	_ = first.Close()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the second socket was removed: %v", err)
	}
}

func TestTooLongPathIsExplained(t *testing.T) {
	_, err := Listen(filepath.Join(t.TempDir(), strings.Repeat("x", 120)), 0o600)
	if err == nil || !strings.Contains(err.Error(), "relative to the working directory") {
		t.Errorf("Listen: %v", err)
	}
}

func TestPeerIsJudgedByItsUser(t *testing.T) {
	own := uint32(os.Geteuid())
	for name, c := range map[string]struct {
		users Users
		want  bool
	}{"own": {DefaultUsers(), true}, "other": {Users{own + 1}, false}, "nobody": {Users{}, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			client, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = client.Close() }()
			conn, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			_, info, err := ServerCredentials(c.users, slog.New(slog.DiscardHandler)).ServerHandshake(conn)
			if (err == nil) != c.want {
				t.Fatalf("ServerHandshake: %v, want accepted: %v", err, c.want)
			}
			if err == nil && info.(AuthInfo).PID != int32(os.Getpid()) {
				t.Errorf("peer = %+v", info)
			}
		})
	}
}

func TestOnlyTheUsersNamedGetThrough(t *testing.T) {
	own := uint32(os.Geteuid())
	for name, c := range map[string]struct {
		users Users
		want  bool
	}{"own": {Users{own}, true}, "other": {Users{own + 1}, false}} {
		t.Run(name, func(t *testing.T) {
			l, err := Listen(filepath.Join(t.TempDir(), "s"), 0o600)
			if err != nil {
				t.Fatal(err)
			}
			only := FilterPeers(l, c.users, slog.New(slog.DiscardHandler))
			accepted := make(chan bool, 1)
			go func() {
				conn, err := only.Accept()
				if err == nil {
					_, _ = conn.Write([]byte("x"))
					_ = conn.Close()
				}
				accepted <- err == nil
			}()
			client, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			n, _ := client.Read(make([]byte, 1))
			_, _ = client.Close(), only.Close()
			if got := <-accepted; got != c.want || (n == 1) != c.want {
				t.Errorf("accepted: %v, bytes read: %d; want accepted: %v", got, n, c.want)
			}
		})
	}
}
