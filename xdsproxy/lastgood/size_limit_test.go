package lastgood

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMaxBytesLimitsCurrentConfigurationNotUpdates: earlier versions in the log do not count towards the limit.
func TestMaxBytesLimitsCurrentConfigurationNotUpdates(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("x", 700<<10)
	for i := range 5 {
		s := openStore(t, dir, 1<<20)
		s.Begin(testIdentity, true)
		writeAccepted(s, 1, clusters, "a", fmt.Sprint(i), content)
		writeAccepted(s, 2, clusters, "b", fmt.Sprint(i), "B")
		s.Checkpoint()
		for n := range 100 {
			writeAccepted(s, uint64(n+3), clusters, "b", fmt.Sprintf("%d.%d", i, n), strings.Repeat("y", 20<<10))
			s.Checkpoint()
		}
		if st := s.Status(); st.Failures != 0 || st.Bytes > 1<<20 {
			t.Fatalf("round %d: %+v", i, st)
		}
		s.Close()
	}
	expectStored(t, openStore(t, dir, 1<<20), "a=4:"+content+" b=4.99:"+strings.Repeat("y", 20<<10))
}

// TestReplacementCountsAfterItsFirstCheckpoint: until then the previous configuration is loaded.
func TestReplacementCountsAfterItsFirstCheckpoint(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir, 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	s.Begin(testIdentity, true)
	writeAccepted(s, 2, clusters, "b", "1", "B")
	expectStored(t, s, "a=1:A")
	s.Close()
	s = openStore(t, dir, 0)
	expectStored(t, s, "a=1:A")
	s.Begin(testIdentity, true)
	writeAccepted(s, 3, clusters, "c", "1", "C")
	s.Checkpoint()
	writeAccepted(s, 4, clusters, "d", "1", "D")
	s.Checkpoint()
	expectStored(t, s, "c=1:C d=1:D")
	s.Close()
	expectStored(t, openStore(t, dir, 0), "c=1:C d=1:D")
}

func TestDirectoryWithOtherFilesIsRefusedUnchanged(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "other-file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir})
	if err == nil {
		s.Close()
		t.Error("a directory with another file was accepted")
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

func TestStatusDoesNotWaitForTheDisk(t *testing.T) {
	s := openStore(t, t.TempDir(), 0)
	s.Begin(testIdentity, true)
	writeAccepted(s, 1, clusters, "a", "1", "A")
	s.Checkpoint()
	s.mu.Lock() // as during a write
	defer s.mu.Unlock()
	if st := s.Status(); st.LastCheckpoint.IsZero() || st.Bytes == 0 {
		t.Errorf("status: %+v", st)
	}
}
