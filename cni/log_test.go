package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestLogFileOfManyWritersIsBoundedAndLosesNoLineThatIsNew(t *testing.T) {
	const writers, lines, limit = 20, 100, 8 << 10
	path := filepath.Join(t.TempDir(), "cni.log")
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range lines {
				if err := appendLimited(path, fmt.Appendf(nil, "writer %d line %d %s\n", w, i, strings.Repeat("x", 40)), limit); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, name := range []string{path, path + ".1"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > limit+writers*100 {
			t.Errorf("%s has %d bytes, more than %d", filepath.Base(name), len(text), limit)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "writer ") || !strings.HasSuffix(line, "x\n") {
				t.Errorf("%s has a line that is no writer's: %q", filepath.Base(name), line)
			}
		}
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v (%v)", filepath.Base(name), info.Mode(), err)
		}
	}
}

func TestLogFileIsNoLinkToAnotherFile(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, "cni.log")); err != nil {
		t.Fatal(err)
	}
	if err := appendLimited(filepath.Join(dir, "cni.log"), []byte("x\n"), 4096); err == nil {
		t.Error("a link was followed")
	}
}
