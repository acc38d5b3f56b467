package config

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// link atomically replaces path by a link.
func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path+".next"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		t.Fatal(err)
	}
}

// The periodic full scan is an hour away in this test.
func TestAllPathComponentsAreWatched(t *testing.T) {
	at := func(dir string, names ...string) string { return filepath.Join(append([]string{dir}, names...)...) }
	swap := func(t *testing.T, dir string) { link(t, "v2", at(dir, "current")) }
	for name, c := range map[string]struct {
		root string
		make func(t *testing.T, dir string)
		edit func(t *testing.T, dir string)
	}{
		"a link around the directory":                    {"current/mesh", func(*testing.T, string) {}, swap},
		"a link that the directory's own leads through":  {"etc/mesh", func(t *testing.T, dir string) { link(t, "../current/mesh", at(dir, "etc/mesh")) }, swap},
		"a link that a file's leads through":             {"etc", func(t *testing.T, dir string) { link(t, "../current/mesh/f.yaml", at(dir, "etc/f.yaml")) }, swap},
		"a link that an inner directory's leads through": {"etc", func(t *testing.T, dir string) { link(t, "../current/mesh", at(dir, "etc/team")) }, swap},
		"what is around the directory, gone for a time": {"around/it/mesh", func(t *testing.T, dir string) {
			write(t, at(dir, "around/it/mesh/f.yaml"), service("f", 1000))
		}, func(t *testing.T, dir string) {
			if err := os.RemoveAll(at(dir, "around")); err != nil {
				t.Fatal(err)
			}
			write(t, at(dir, "around/it/mesh/f.yaml"), service("f", 2000))
		}},
		"what a link leads to, not there at first": {"etc", func(t *testing.T, dir string) { link(t, "../later/f.yaml", at(dir, "etc/f.yaml")) }, func(t *testing.T, dir string) {
			write(t, at(dir, "later/f.yaml"), service("f", 2000))
		}},
		"a directory by two names": {"current/mesh", func(t *testing.T, dir string) { link(t, "f.yaml", at(dir, "v1/mesh/g.yaml")) }, func(t *testing.T, dir string) {
			write(t, at(dir, "v1/mesh/new.yaml"), service("new", 2000))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, at(dir, "v1/mesh/f.yaml"), service("f", 1000))
			write(t, at(dir, "v2/mesh/f.yaml"), service("f", 2000))
			link(t, "v1", at(dir, "current"))
			c.make(t, dir)
			root := at(dir, c.root)
			f := startStore(t, root)
			for round := range 4 { // until no scan is caused by the start of Run any more
				write(t, at(root, "seen.yaml"), service("seen", 1000+round))
				f.waitFor("the files are followed", func() bool { return slices.Equal(resourcesInForce(f.DirStore), listInForceBy(t, root)) })
			}
			c.edit(t, dir)
			f.waitFor(fmt.Sprintf("what is in force is %v", listInForceBy(t, root)), func() bool { return slices.Equal(resourcesInForce(f.DirStore), listInForceBy(t, root)) })
		})
	}
}

func listInForceBy(t *testing.T, root string) []string {
	t.Helper()
	fresh, err := NewDirStore(DirConfig{Paths: []string{root}})
	if err != nil {
		t.Fatal(err)
	}
	return resourcesInForce(fresh)
}

// Archives restore files with one modification time.
func TestFilesOfTheSameTimeAndSizeAreReadAgain(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "f.yaml")
	put := func(port int) fs.FileInfo {
		write(t, path, service("s", port))
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := put(1000)
	if changeTime(first).IsZero() {
		t.Skip("the system's own change time is not read on this platform")
	}
	store, err := NewDirStore(DirConfig{Paths: []string{root}})
	if err != nil {
		t.Fatal(err)
	}
	for changeTime(put(2000)).Equal(changeTime(first)) { // the kernel's clock for file times is coarse
	}
	store.scan(nil)
	if got := store.List(Service)[0].Spec.(*ServiceSpec).Ports[0].Port; got != 2000 {
		t.Errorf("port %d is in force", got)
	}
}
