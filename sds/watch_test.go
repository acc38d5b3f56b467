package sds

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/fstimeout"
)

// A directory above the watched directory is replaced. It is not watched, because its path contains no symbolic link,
// so there is no notification. The next poll finds the new directory.
func TestReplacedDirectoryIsWatched(t *testing.T) {
	root := t.TempDir()
	above := filepath.Join(root, "above")
	file := filepath.Join(above, "certs", "ca.pem")
	lay := func() {
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, file, []byte("text"))
	}
	lay()
	w := &fileWatcher{debounce: time.Millisecond, clock: systemClock{}, log: slog.New(slog.DiscardHandler), failed: func() {}, wake: make(chan struct{}, 1), timeoutFS: &fstimeout.TimeoutFS{}}
	defer w.close()
	if !w.updateWatches([]string{file}) {
		t.Fatal("the directory is not watched")
	}
	if err := os.Rename(above, above+".old"); err != nil {
		t.Fatal(err)
	}
	lay()
	if !w.updateWatches([]string{file}) {
		t.Error("the new directory was not found")
	}
	if w.updateWatches([]string{file}) {
		t.Error("a new directory was reported although nothing changed")
	}
	write(t, file, []byte("changed"))
	if !w.waitForChange(t.Context(), time.Minute) {
		t.Error("a change in the new directory was not reported")
	}
}
