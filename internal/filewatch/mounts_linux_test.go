package filewatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestMountsAtAPathAreReported(t *testing.T) {
	if !testns.EnterPrivateMounts(t, "") {
		return
	}
	root := t.TempDir()
	watched := filepath.Join(root, "a name", "watched")
	link := filepath.Join(root, "link")
	for _, dir := range []string{filepath.Join(watched, "below"), filepath.Join(root, "other")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(watched, link); err != nil {
		t.Fatal(err)
	}
	m, err := WatchMounts(link)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for _, dir := range []string{watched, filepath.Join(watched, "below"), filepath.Dir(watched)} {
		// An unrelated mount is first; it must not cause a change.
		if err := unix.Mount("tmpfs", filepath.Join(root, "other"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		expectChange(t, m, dir+" is mounted")
		unmount(t, dir)
		expectChange(t, m, dir+" is unmounted")
		unmount(t, filepath.Join(root, "other"))
	}
}

// unmount retries while the watch reads the mounts, because the file system is then in use.
func unmount(t *testing.T, dir string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		err := unix.Unmount(dir, 0)
		if err == nil {
			return
		}
		if err != unix.EBUSY || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

func expectChange(t *testing.T, m *Mounts, what string) {
	t.Helper()
	select {
	case <-m.Changes:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s, and nobody is told", what)
	}
}
