package sds

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/disks"
)

// A directory that is not watched, since no link is in it, is moved as a whole, and another one put in its place: nothing is
// heard of that, but the next look follows the new one.
func TestDirectoryThatCameInAnothersPlaceIsFollowed(t *testing.T) {
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
	w := &watch{debounce: time.Millisecond, clock: SystemClock{}, log: slog.New(slog.DiscardHandler), failed: func() {}, wake: make(chan struct{}, 1), disks: &disks.Disks{}}
	defer w.close()
	if !w.follow([]string{file}) {
		t.Fatal("the directory is not watched")
	}
	if err := os.Rename(above, above+".old"); err != nil {
		t.Fatal(err)
	}
	lay()
	if !w.follow([]string{file}) {
		t.Error("nothing new was found")
	}
	if w.follow([]string{file}) {
		t.Error("something new was found where nothing happened")
	}
	write(t, file, []byte("changed"))
	if !w.await(t.Context(), time.Minute) {
		t.Error("a change in the new directory was not heard")
	}
}
