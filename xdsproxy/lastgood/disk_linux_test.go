package lastgood

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// TestReadOnlyDiskGivesWhatItHasAndMemoryTakesWhatComes is on a file system that cannot be written to for a while.
func TestReadOnlyDiskGivesWhatItHasAndMemoryTakesWhatComes(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir := filepath.Join(disk, "last-good")
	s := open(t, dir, 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	s.Close()
	remount := func(flags uintptr) {
		if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT|flags, "size=1m"); err != nil {
			t.Fatal(err)
		}
	}
	remount(unix.MS_RDONLY)
	now := time.Now()
	c := Config{Dir: dir, MaxMemory: 1 << 20, Now: func() time.Time { return now }}
	_, err := Open(c)
	if err == nil {
		t.Fatal("a disk that is for reading was opened for writing")
	}
	c.ReadOnly, c.Why = true, err
	if s, err = Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	expectKept(t, s, "a=1:A")
	s.Begin(me, false)
	accept(s, 2, clusters, "b", "1", "B")
	s.Mark()
	now = now.Add(retryDisk)
	s.Mark()
	expectKept(t, s, "a=1:A b=1:B")
	if st := s.Status(); !st.InMemory || !strings.Contains(st.NoDisk, "read-only") || st.Failures != 0 {
		t.Errorf("status: %+v", st)
	}
	s.Begin(me, true)
	accept(s, 3, clusters, "c", "1", "C")
	s.Mark()
	expectKept(t, s, "c=1:C")

	remount(0)
	s.Mark()
	if st := s.Status(); !st.InMemory {
		t.Errorf("the disk was tried again too soon: %+v", st)
	}
	now = now.Add(2 * retryDisk)
	s.Mark()
	if st := s.Status(); st.InMemory {
		t.Errorf("status: %+v", st)
	}
	s.Close()
	expectKept(t, open(t, dir, 0), "c=1:C")
}

// TestFullDiskLeavesItToMemory is on a file system of 64 KiB.
func TestFullDiskLeavesItToMemory(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s, err := Open(Config{Dir: filepath.Join(disk, "last-good"), MaxMemory: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	large := strings.Repeat("x", 100<<10)
	for round, wantFailures := range []uint64{1, 1} {
		s.Begin(me, true) // as after a failure: all comes anew
		accept(s, 1, clusters, "a", "1", large)
		s.Mark()
		if st := s.Status(); st.Failures != wantFailures || !strings.Contains(st.NoDisk, "no space left") {
			t.Errorf("round %d: %+v", round, st)
		}
	}
	expectKept(t, s, "a=1:"+large)
}
