package config

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
)

func TestFileSystemMountedOverTheDirectoryIsRead(t *testing.T) {
	if !testns.EnterPrivateMounts(t, "") {
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
	write(t, filepath.Join(dir, "b.yaml"), service("followed", 2)) // so that everything is watched
	has("below", "followed")
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "c.yaml"), service("above", 3))
	has("above")
	write(t, filepath.Join(dir, "d.yaml"), service("besides", 4))
	has("above", "besides")
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	has("below", "followed")
}
