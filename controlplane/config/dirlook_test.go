package config

import (
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// twins are two stores over the same files: one looks only at what was touched, the other at everything each time.
type twins struct {
	t       *testing.T
	rng     *rand.Rand
	dirs    []string
	now     time.Time
	some    *DirStore
	all     *DirStore
	tree    *plainTree // of the last look at everything
	few     int        // looks that did without everything
	touched map[string]bool
}

func newTwins(t *testing.T, seed uint64) *twins {
	root := t.TempDir()
	w := &twins{t: t, rng: rand.New(rand.NewPCG(seed, 7)), dirs: []string{filepath.Join(root, "a"), filepath.Join(root, "a", "b"), filepath.Join(root, "a-c")}, now: time.Unix(1e9, 0)}
	for _, dir := range w.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	make := func() *DirStore {
		store, err := NewDirStore(DirConfig{Paths: []string{w.dirs[2], w.dirs[0]}, Now: func() time.Time { return w.now }})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	w.some, w.all = make(), make()
	return w
}

// document is a good or a bad text of one of a few services.
func (w *twins) document() string {
	text := service(fmt.Sprintf("s%d", w.rng.IntN(8)), 1+w.rng.IntN(4))
	switch w.rng.IntN(8) {
	case 0:
		return strings.Replace(text, "port:", "prot:", 1)
	case 1:
		return strings.Replace(text, "kind: Service", "kind: Deployment", 1)
	}
	return text
}

func (w *twins) text() string {
	switch w.rng.IntN(12) {
	case 0:
		return ""
	case 1:
		return "a: b: c\n"
	}
	var documents []string
	for range 1 + w.rng.IntN(3) {
		documents = append(documents, w.document())
	}
	return strings.Join(documents, "---\n")
}

func (w *twins) path() string {
	names := []string{"a.yaml", "b.yaml", "b-c.yaml", "c.json", "d.txt", ".e.yaml"}
	return filepath.Join(w.dirs[w.rng.IntN(len(w.dirs))], names[w.rng.IntN(len(names))])
}

// edit changes something at random, and notes what the system would tell of.
func (w *twins) edit() {
	path, other := w.path(), w.path()
	w.touched = map[string]bool{path: true}
	switch w.rng.IntN(10) {
	case 0, 1:
		_ = os.RemoveAll(path)
	case 2:
		w.touched[other] = true
		_ = os.Rename(path, other)
	case 3:
		_ = os.Remove(path)
		if os.Mkdir(path, 0o755) == nil {
			_ = os.WriteFile(filepath.Join(path, "x.yaml"), []byte(w.text()), 0o644)
		}
	case 4:
		w.touched[other] = true
		_ = os.Remove(path)
		_ = os.Link(other, path)
	case 5:
		_ = os.Remove(path)
		_ = os.Symlink(other, path)
	default:
		_ = os.WriteFile(path, []byte(w.text()), 0o644)
	}
	w.now = w.now.Add(time.Duration(w.rng.IntN(3)) * 60 * time.Millisecond)
	if w.rng.IntN(10) == 0 {
		w.now = w.now.Add(emptyGrace)
	}
}

func (w *twins) scan() {
	done := false
	if w.tree != nil {
		_, done = w.some.scanSome(w.tree, w.touched)
	}
	if !done {
		found := find(w.some.cfg.Paths)
		watched := map[string]fs.FileInfo{}
		for _, dir := range found.dirs {
			watched[dir.path] = dir.info
		}
		w.some.scanOf(found, w.touched)
		w.tree = found.tree(watched)
	} else {
		w.few++
	}
	maps.Copy(w.all.looked, w.all.files)
	w.all.scan(w.touched)
}

func (w *twins) compare(step int) {
	w.t.Helper()
	resources := func(s *DirStore) (out []string) {
		for _, r := range s.List(Service) {
			out = append(out, fmt.Sprint(r.Key, r.Origin, r.Spec))
		}
		return out
	}
	left := func(s *DirStore) (out []string) {
		for _, d := range s.unsaid() {
			out = append(out, fmt.Sprint(d.path, d.resource.Key, d.since.UnixNano()))
		}
		slices.Sort(out)
		return out
	}
	same(w.t, step, "resources", resources(w.some), resources(w.all))
	same(w.t, step, "order", w.some.order, w.all.order)
	same(w.t, step, "problems", w.some.Problems(), w.all.Problems())
	same(w.t, step, "documents", w.some.Documents(), w.all.Documents())
	same(w.t, step, "count of problems", []int{w.some.told.count}, []int{len(w.all.Problems())})
	same(w.t, step, "files to look at again", slices.Sorted(maps.Keys(w.some.waiting)), slices.Sorted(maps.Keys(w.all.waiting)))
	same(w.t, step, "what would be lost in a restart", left(w.some), left(w.all))
}

func same[T comparable](t *testing.T, step int, what string, some, all []T) {
	t.Helper()
	for i := range max(len(some), len(all)) {
		if i >= len(some) || i >= len(all) || some[i] != all[i] {
			t.Fatalf("step %d: %s differ from number %d on: a look at what was touched gives\n%v\na look at everything\n%v", step, what, i, some[min(i, len(some)):], all[min(i, len(all)):])
		}
	}
}

func TestLookAtWhatWasTouchedIsAsGoodAsOneAtEverything(t *testing.T) {
	few := 0
	for seed := range uint64(12) {
		w := newTwins(t, seed)
		for step := range 60 {
			w.edit()
			w.scan()
			w.compare(step)
		}
		few += w.few
	}
	if few == 0 {
		t.Error("never did less than everything")
	}
}
