package config

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// The test runs again in a mount namespace of its own.
func TestFileSystemThatIsMountedOverTheDirectoryIsRead(t *testing.T) {
	if os.Getenv("PILOTFISH_TEST_MOUNTS") == "" {
		if os.Getuid() != 0 {
			t.Skip("only root can mount")
		}
		again := exec.Command("unshare", "--mount", os.Args[0], "-test.v", "-test.run", "^"+t.Name()+"$")
		again.Env = append(os.Environ(), "PILOTFISH_TEST_MOUNTS=yes")
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return
	}
	root := t.TempDir()
	dir := filepath.Join(root, "config dir") // a name that the kernel escapes
	write(t, filepath.Join(dir, "a.yaml"), service("below", 1))
	s, err := NewDirStore(DirConfig{Paths: []string{dir}, Rescan: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	has := func(want ...string) {
		t.Helper()
		testenv.Eventually(t, "the documents of what is mounted", func() error {
			var got []string
			for _, r := range s.List(Service) {
				got = append(got, r.Name)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("they are %v, and not %v", got, want)
			}
			return nil
		})
	}
	has("below")
	write(t, filepath.Join(dir, "b.yaml"), service("followed", 2)) // so that all is watched
	has("below", "followed")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "c.yaml"), service("above", 3))
	has("above")
	write(t, filepath.Join(dir, "d.yaml"), service("besides", 4))
	has("above", "besides")
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	has("below", "followed")
}
