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

// TestFullDiskRetainsCheckpointAndRecovers uses a file system of 64 KiB.
func TestFullDiskRetainsCheckpointAndRecovers(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	s := openStore(t, filepath.Join(disk, "last-good"), 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	other := filepath.Join(disk, "other")
	if err := os.WriteFile(other, make([]byte, 40<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		writeAccepted(s, uint64(i+2), clusters, fmt.Sprint("b", i), "1", strings.Repeat("x", 8<<10))
	}
	s.Checkpoint()
	st := s.Status()
	if st.Failures != 1 || !strings.Contains(st.Reason, "no space left") {
		t.Errorf("status: %+v", st)
	}
	expectStored(t, s, "a=1:A")

	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "c", "1", "C")
	s.Checkpoint()
	expectStored(t, s, "c=1:C")
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
}

// TestReadOnlyDiskIsReadAndMemoryIsWritten uses a file system that is read-only for a while.
func TestReadOnlyDiskIsReadAndMemoryIsWritten(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir := filepath.Join(disk, "last-good")
	s := openStore(t, dir, 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
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
		t.Fatal("a read-only disk was opened for writing")
	}
	c.ReadOnly, c.Reason = true, err
	if s, err = Open(c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	expectStored(t, s, "a=1:A")
	s.Begin(testIdentity, false)
	writeAccepted(s, 2, clusters, "b", "1", "B")
	s.Checkpoint()
	now = now.Add(minDiskRetry)
	s.Checkpoint()
	expectStored(t, s, "a=1:A b=1:B")
	if st := s.Status(); !st.InMemory || !strings.Contains(st.NoDisk, "read-only") || st.Failures != 0 {
		t.Errorf("status: %+v", st)
	}
	s.Begin(testIdentity, true)
	writeAccepted(s, 3, clusters, "c", "1", "C")
	s.Checkpoint()
	expectStored(t, s, "c=1:C")

	remount(0)
	s.Checkpoint()
	if st := s.Status(); !st.InMemory {
		t.Errorf("the disk was retried too early: %+v", st)
	}
	now = now.Add(2 * minDiskRetry)
	s.Checkpoint()
	if st := s.Status(); st.InMemory {
		t.Errorf("status: %+v", st)
	}
	s.Close()
	expectStored(t, openStore(t, dir, 0), "c=1:C")
}

// TestFullDiskSwitchesToMemory uses a file system of 64 KiB.
func TestFullDiskSwitchesToMemory(t *testing.T) {
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
		s.Begin(testIdentity, true) // as after a failure: all resources are sent again
		writeAccepted(s, 1, clusters, "a", "1", large)
		s.Checkpoint()
		if st := s.Status(); st.Failures != wantFailures || !strings.Contains(st.NoDisk, "no space left") {
			t.Errorf("round %d: %+v", round, st)
		}
	}
	expectStored(t, s, "a=1:"+large)
}
