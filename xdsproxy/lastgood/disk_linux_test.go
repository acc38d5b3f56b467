package lastgood

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFullDiskLeavesWhatWasKeptAndGoesOnWhenThereIsRoom is on a file system of 64 KiB.
func TestFullDiskLeavesWhatWasKeptAndGoesOnWhenThereIsRoom(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s := open(t, filepath.Join(disk, "last-good"), 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	other := filepath.Join(disk, "other")
	if err := os.WriteFile(other, make([]byte, 40<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		accept(s, uint64(i+2), clusters, fmt.Sprint("b", i), "1", strings.Repeat("x", 8<<10))
	}
	s.Mark()
	st := s.Status()
	if st.Failures != 1 || !strings.Contains(st.Reason, "no space left") {
		t.Errorf("status: %+v", st)
	}
	expectKept(t, s, "a=1:A")

	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	s.Begin(me, true)
	accept(s, 1, clusters, "c", "1", "C")
	s.Mark()
	expectKept(t, s, "c=1:C")
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
}
