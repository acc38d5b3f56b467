package owner

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// proxy is a user other than the user who runs the test.
var proxy = &Owner{UID: 41337, GID: 41337}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("changing the owner of a file requires root")
	}
}

func uidOf(t *testing.T, path string) uint32 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Uid
}

func file(t *testing.T, dir, name string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOwnerIsChangedOnlyForExpectedFiles(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	plain, secret := file(t, dir, "plain"), file(t, dir, "secret")
	if err := proxy.Chown(plain); err != nil || uidOf(t, plain) != proxy.UID {
		t.Fatalf("%v, of user %d", err, uidOf(t, plain))
	}
	if err := proxy.Chown(plain); err != nil {
		t.Errorf("the second time: %v", err)
	}
	for name, link := range map[string]func(string, string) error{"symbolic": os.Symlink, "hard": os.Link} {
		path := filepath.Join(dir, name)
		if err := link(secret, path); err != nil {
			t.Fatal(err)
		}
		if err := proxy.Chown(path); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("Chown of a %s link returned %v, want an error with a remedy", name, err)
		}
	}
	if uid := uidOf(t, secret); uid != 0 {
		t.Errorf("Chown of a link changed the owner of its target to user %d", uid)
	}
	others := file(t, dir, "others")
	if err := os.Chown(others, 4242, 4242); err != nil {
		t.Fatal(err)
	}
	if err := proxy.Chown(others); err == nil || uidOf(t, others) != 4242 {
		t.Errorf("Chown of a file of a third user returned %v, want an error", err)
	}
}

func TestShownFilesAreReadAndNotChanged(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	old := syscall.Umask(0o077)
	err := proxy.MkdirAll(dir, 0o700)
	syscall.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	path := file(t, dir, "module")
	for _, p := range []string{dir, path} {
		if err := proxy.MakeReadable(p); err != nil {
			t.Fatal(err)
		}
	}
	for p, want := range map[string]string{filepath.Dir(dir): "0 0 711", dir: "0 41337 750", path: "0 41337 640"} {
		info, err := os.Lstat(p)
		if err != nil {
			t.Fatal(err)
		}
		s := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%d %d %o", s.Uid, s.Gid, info.Mode().Perm()); got != want {
			t.Errorf("%s is %s, want %s", p, got, want)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link); err != nil {
		t.Fatal(err)
	}
	if proxy.MakeReadable(link) == nil {
		t.Error("MakeReadable accepted a symbolic link")
	}
}

func TestMissingCapabilitiesAreNamed(t *testing.T) {
	needRoot(t)
	if err := proxy.CheckCapabilities(); err != nil {
		t.Fatal(err)
	}
	told := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		_ = unix.Capget(&header, &sets[0])
		sets[0].Effective &^= 1<<unix.CAP_KILL | 1<<unix.CAP_CHOWN
		_ = unix.Capset(&header, &sets[0])
		told <- proxy.CheckCapabilities()
	}()
	if err := <-told; err == nil || !strings.HasSuffix(err.Error(), "add CHOWN, KILL") {
		t.Errorf("CheckCapabilities returned %v, want an error that lists CHOWN and KILL", err)
	}
}
