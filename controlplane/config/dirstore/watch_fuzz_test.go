package dirstore

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// liveTree is a directory that is changed in many ways. Each document in it has a unique name, so that the result does
// not depend on earlier content.
type liveTree struct {
	t    *testing.T
	rng  *rand.Rand
	root string
	made int
}

func (l *liveTree) text() string {
	l.made++
	return service(fmt.Sprintf("s%d", l.made), 1+l.made%60000)
}

func (l *liveTree) file() string {
	return filepath.Join(l.root, []string{"", "a", "b", "a/c"}[l.rng.IntN(4)], fmt.Sprintf("f%d.yaml", l.rng.IntN(5)))
}

func (l *liveTree) dir() string {
	return filepath.Join(l.root, []string{"a", "b", "a/c", "d"}[l.rng.IntN(4)])
}

// volume replaces all files of a directory at once, as the kubelet does.
func (l *liveTree) volume() {
	dir := filepath.Join(l.root, "volume")
	l.made++
	version := filepath.Join(dir, fmt.Sprintf("..v%d", l.made))
	write(l.t, filepath.Join(version, "v.yaml"), l.text())
	_ = os.Symlink(filepath.Base(version), filepath.Join(dir, "..next"))
	_ = os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data"))
	_ = os.Symlink("..data/v.yaml", filepath.Join(dir, "v.yaml"))
	old, _ := filepath.Glob(filepath.Join(dir, "..v*"))
	for _, other := range old {
		if other != version {
			_ = os.RemoveAll(other)
		}
	}
}

// edit applies one random change, if possible.
func (l *liveTree) edit() {
	path, dir := l.file(), l.dir()
	if info, err := os.Lstat(path); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		_ = os.Remove(path) // only the periodic scan finds a change of the target outside
	}
	switch l.rng.IntN(14) {
	case 0, 1:
		_ = os.Remove(path)
	case 2:
		_ = os.Rename(path, l.file())
	case 3:
		_ = os.RemoveAll(dir)
	case 4:
		_ = os.Rename(dir, l.dir())
	case 5:
		other := dir + ".draft"
		write(l.t, filepath.Join(other, "f0.yaml"), l.text())
		_ = os.RemoveAll(dir)
		_ = os.Rename(other, dir)
	case 6:
		_ = os.Remove(path)
		outside := filepath.Join(filepath.Dir(l.root), fmt.Sprintf("outside-%d.yaml", l.made))
		_ = os.WriteFile(outside, []byte(l.text()), 0o644)
		_ = os.Symlink(outside, path)
	case 7:
		if l.rng.IntN(4) == 0 {
			l.volume()
		} else {
			_ = os.RemoveAll(filepath.Join(l.root, "volume"))
		}
	case 8:
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		draft := path + ".tmp"
		_ = os.WriteFile(draft, []byte(l.text()), 0o644)
		_ = os.Rename(draft, path)
	case 9:
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, _ = fmt.Fprintf(file, "---\n%s", l.text())
			_ = file.Close()
		}
	default:
		_ = os.MkdirAll(filepath.Dir(path), 0o755)
		_ = os.WriteFile(path, []byte(l.text()), 0o644)
	}
}

// resourcesInForce lists the resources in force with their positions.
func resourcesInForce(s *Store) (out []string) {
	for _, r := range s.List(config.Service) {
		out = append(out, fmt.Sprint(r.Name, " ", r.Origin, " ", r.Spec.(*config.ServiceSpec).Ports[0].Port))
	}
	return out
}

func TestWatchedFilesEqualAFreshScan(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "mesh")
			l := &liveTree{t: t, rng: rand.New(rand.NewPCG(seed, 11)), root: root}
			write(t, filepath.Join(root, "f0.yaml"), l.text())
			f := startStore(t, root)
			for range 12 {
				for range 1 + l.rng.IntN(6) {
					l.edit()
				}
				fresh, err := New(Config{Paths: []string{root}})
				if err != nil {
					t.Fatal(err)
				}
				want := resourcesInForce(fresh)
				f.waitFor(fmt.Sprintf("what is in force is %v", want), func() bool { return slices.Equal(resourcesInForce(f.Store), want) })
			}
		})
	}
}
