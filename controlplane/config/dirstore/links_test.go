package dirstore

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
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

// volume replaces all files of a volume at once, as the kubelet does: f.yaml and dir/f.yaml are links through "..data".
func volume(t *testing.T, dir, version string, port int) {
	t.Helper()
	write(t, filepath.Join(dir, version, "f.yaml"), service("f", port))
	write(t, filepath.Join(dir, version, "dir", "f.yaml"), service("inner", port))
	link(t, version, filepath.Join(dir, "..data"))
	link(t, "..data/f.yaml", filepath.Join(dir, "f.yaml"))
	link(t, "..data/dir", filepath.Join(dir, "dir"))
}

// The periodic scan is an hour away in this test.
func TestReplacedVolumeIsRead(t *testing.T) {
	for name, root := range map[string]string{
		"the volume": "vol", "a file of the volume": "vol/f.yaml", "a directory of the volume": "vol/dir", "the directory around it": ".", "a link to it": "link",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			volume(t, filepath.Join(dir, "vol"), "..v1", 1000)
			link(t, "vol", filepath.Join(dir, "link"))
			f := startStore(t, filepath.Join(dir, root))
			for _, version := range []string{"..v2", "..v3"} {
				volume(t, filepath.Join(dir, "vol"), version, 2000)
				if err := os.RemoveAll(filepath.Join(dir, "vol", "..v1")); err != nil {
					t.Fatal(err)
				}
				want := listInForceBy(t, filepath.Join(dir, root))
				f.waitFor(fmt.Sprintf("what is in force is %v", want), func() bool { return slices.Equal(resourcesInForce(f.Store), want) })
			}
		})
	}
}

func TestReplacedLinkToDirectoryIsRead(t *testing.T) {
	dir := t.TempDir()
	for i := range 4 {
		write(t, filepath.Join(dir, fmt.Sprint("v", i), "f.yaml"), service("f", 1000+i))
	}
	root := filepath.Join(dir, "current")
	link(t, "v0", root)
	f := startStore(t, root)
	for i := range 4 {
		link(t, fmt.Sprint("v", i), root)
		f.waitFor(fmt.Sprint("version ", i), func() bool { return slices.Equal(resourcesInForce(f.Store), listInForceBy(t, root)) })
		write(t, filepath.Join(root, "f.yaml"), service("f", 2000+i))
		f.waitFor("an edit behind the link", func() bool { return slices.Equal(resourcesInForce(f.Store), listInForceBy(t, root)) })
	}
}

// Changes that the system does not report are found by the periodic scan.
func TestChangesWithoutEventAreFoundByThePeriodicScan(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "outside.yaml"), service("f", 1000))
	root := filepath.Join(dir, "inner", "root")
	link(t, "../../outside.yaml", filepath.Join(root, "f.yaml"))
	f := startStoreWith(t, Config{Paths: []string{root}, Rescan: 50 * time.Millisecond})
	f.waitFor("the first version", func() bool { return slices.Equal(resourcesInForce(f.Store), listInForceBy(t, root)) })
	write(t, filepath.Join(dir, "outside.yaml"), service("f", 2000))
	f.waitFor("the edited target", func() bool { return slices.Equal(resourcesInForce(f.Store), listInForceBy(t, root)) })
}

func listInForceBy(t *testing.T, root string) []string {
	t.Helper()
	fresh, err := New(Config{Paths: []string{root}})
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
	store, err := New(Config{Paths: []string{root}})
	if err != nil {
		t.Fatal(err)
	}
	for changeTime(put(2000)).Equal(changeTime(first)) { // the kernel's clock for file times is coarse
	}
	store.scan(nil)
	if got := store.List(config.Service)[0].Spec.(*config.ServiceSpec).Ports[0].Port; got != 2000 {
		t.Errorf("port %d is in force", got)
	}
}
