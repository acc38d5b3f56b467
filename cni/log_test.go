package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLogFileOfConcurrentWritersIsRotatedWithoutLoss(t *testing.T) {
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

func TestLogFileIsNotWrittenThroughALink(t *testing.T) {
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"a link":                   func(path string) error { return os.Symlink(other, path) },
		"a second name":            func(path string) error { return os.Link(other, path) },
		"a pipe that nobody reads": func(path string) error { return unix.Mkfifo(path, 0o600) },
		"a folder":                 func(path string) error { return os.Mkdir(path, 0o700) },
		"a pipe in the lock's place": func(path string) error {
			return errors.Join(os.WriteFile(path, make([]byte, 5000), 0o600), unix.Mkfifo(path+".lock", 0o600))
		},
	} {
		path := filepath.Join(filepath.Dir(other), strings.ReplaceAll(name, " ", "-"))
		if err := plant(path); err != nil {
			t.Fatal(err)
		}
		if err := appendLimited(path, []byte("x\n"), 4096); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if info, err := os.Stat(other); err != nil || info.Size() != 0 {
		t.Errorf("the target of the link was written: %v (%v)", info, err)
	}
}
