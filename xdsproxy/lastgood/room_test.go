package lastgood

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfigurationThatFitsIsKeptHoweverOftenItBeginsOrChanges: the limit is about what is kept, not about what was.
func TestConfigurationThatFitsIsKeptHoweverOftenItBeginsOrChanges(t *testing.T) {
	dir := t.TempDir()
	content := strings.Repeat("x", 700<<10)
	for i := range 5 {
		s := open(t, dir, 1<<20)
		s.Begin(me, true)
		accept(s, 1, clusters, "a", fmt.Sprint(i), content)
		accept(s, 2, clusters, "b", fmt.Sprint(i), "B")
		s.Mark()
		for n := range 100 {
			accept(s, uint64(n+3), clusters, "b", fmt.Sprintf("%d.%d", i, n), strings.Repeat("y", 20<<10))
			s.Mark()
		}
		if st := s.Status(); st.Failures != 0 || st.Bytes > 1<<20 {
			t.Fatalf("round %d: %+v", i, st)
		}
		s.Close()
	}
	expectKept(t, open(t, dir, 1<<20), "a=4:"+content+" b=4.99:"+strings.Repeat("y", 20<<10))
}

// TestWhatBeganAnewCountsOnceItIsMarked: until then what was kept before does.
func TestWhatBeganAnewCountsOnceItIsMarked(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	s.Begin(me, true)
	accept(s, 2, clusters, "b", "1", "B")
	expectKept(t, s, "a=1:A")
	s.Close()
	s = open(t, dir, 0)
	expectKept(t, s, "a=1:A")
	s.Begin(me, true)
	accept(s, 3, clusters, "c", "1", "C")
	s.Mark()
	accept(s, 4, clusters, "d", "1", "D")
	s.Mark()
	expectKept(t, s, "c=1:C d=1:D")
	s.Close()
	expectKept(t, open(t, dir, 0), "c=1:C d=1:D")
}

func TestDirectoryThatOthersUseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "theirs"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Config{Dir: dir})
	if err == nil {
		s.Close()
		t.Error("the directory was taken")
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("its mode is %v, %v", info.Mode(), err)
	}
}

func TestStatusDoesNotWaitForTheDisk(t *testing.T) {
	s := open(t, t.TempDir(), 0)
	s.Begin(me, true)
	accept(s, 1, clusters, "a", "1", "A")
	s.Mark()
	s.mu.Lock() // as while something is written
	defer s.mu.Unlock()
	if st := s.Status(); st.Marked.IsZero() || st.Bytes == 0 {
		t.Errorf("status: %+v", st)
	}
}
