package filewatch

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestMountsThatConcernAPathAreToldOf(t *testing.T) {
	if !testns.WithOwnMounts(t, "") {
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
		// What concerns nobody comes first; of that there would be one change too many.
		if err := unix.Mount("tmpfs", filepath.Join(root, "other"), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		told(t, m, dir+" is mounted")
		unmount(t, dir)
		told(t, m, dir+" is unmounted")
		unmount(t, filepath.Join(root, "other"))
	}
}

// unmount asks again where the watch is just looking at what is mounted, for which it is in use.
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

func told(t *testing.T, m *Mounts, what string) {
	t.Helper()
	select {
	case <-m.Changes:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s, and nobody is told", what)
	}
}
