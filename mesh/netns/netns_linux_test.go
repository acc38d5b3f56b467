package netns

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func newNamespace(t *testing.T) *Namespace {
	t.Helper()
	n, err := New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

// /proc/PID shows the namespaces of the main thread as those of the process, also to the process itself.
func TestMainThreadNeverLeavesItsNamespace(t *testing.T) {
	n := newNamespace(t)
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			err := n.Do(func() error {
				if unix.Gettid() == unix.Getpid() {
					t.Error("the function runs on the main thread")
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			OnThread(func() {
				if unix.Gettid() == unix.Getpid() {
					t.Error("the function runs on the main thread")
				}
			})
		})
	}
	wg.Wait()
	if now, _ := os.Readlink("/proc/self/ns/net"); now != before {
		t.Errorf("the main thread was in %s and is now in %s", before, now)
	}
	if l, err := net.Listen("tcp", "127.178.1.1:0"); err != nil {
		t.Errorf("a thread is still in another namespace: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestBridgeConnectsNamespacesWithBothFamilies(t *testing.T) {
	gateway4, gateway6 := netip.MustParsePrefix("10.9.0.1/16"), netip.MustParsePrefix("fd00:9::1/64")
	bridge, err := NewBridge(gateway4, gateway6)
	if err != nil {
		t.Skip(err)
	}
	defer bridge.Close()
	var spaces []*Namespace
	for _, addresses := range [][]netip.Prefix{
		{netip.MustParsePrefix("10.9.1.1/16"), netip.MustParsePrefix("fd00:9::1:1/64")},
		{netip.MustParsePrefix("10.9.2.1/16"), netip.MustParsePrefix("fd00:9::2:1/64")},
	} {
		n := newNamespace(t)
		if err := bridge.Connect(n, "eth0", addresses, []netip.Addr{gateway4.Addr(), gateway6.Addr()}); err != nil {
			t.Fatal(err)
		}
		spaces = append(spaces, n)
	}
	for _, address := range []string{"10.9.1.1:80", "[fd00:9::1:1]:80"} {
		l, err := spaces[0].Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		for what, from := range map[string]*Namespace{"the other namespace": spaces[1], "the bridge": bridge.Namespace, "itself": spaces[0]} {
			if conn, err := from.Dial(context.Background(), "tcp", address); err != nil {
				t.Errorf("from %s: %v", what, err)
			} else {
				_ = conn.Close()
			}
		}
		_ = l.Close()
	}
}

func TestProcessIsolationLimitsFilesGroupsCapabilities(t *testing.T) {
	n := newNamespace(t)
	own := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(own, []byte("its own\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile("/etc/resolv.conf")
	around := ProcessIsolation{Files: map[string]string{"/etc/resolv.conf": own, "/etc/not-there": own}, Hide: []string{"/usr/games", "/not-there"}, Group: 1337, Capabilities: []uintptr{unix.CAP_NET_BIND_SERVICE}}
	var out []byte
	var err error
	OnThread(func() {
		if err = n.EnterThread(); err == nil {
			err = around.Enter()
		}
		if err == nil {
			out, err = exec.Command("sh", "-c", "cat /etc/resolv.conf; id -g; id -G; grep -E 'Cap(Eff|Prm|Inh|Bnd)' /proc/self/status; ls /sys/class/net | wc -l >/dev/null; chown 1 "+own+" 2>&1").CombinedOutput()
		}
	})
	if err == nil {
		t.Errorf("the isolated process can still change the owner of a file: %s", out)
	}
	text := string(out)
	if !strings.HasPrefix(text, "its own\n1337\n1337\n") || strings.Count(text, "0000000000000400\n") != 3 {
		t.Errorf("the isolated process printed %s, %v", text, err)
	}
	if now, _ := os.ReadFile("/etc/resolv.conf"); string(now) != string(before) {
		t.Error("/etc/resolv.conf changed outside of the isolated process")
	}
}
