package dirstore

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/controlplane/config"
)

// storePair is two stores of the same files: one reads only changed files, the other one reads all.
type storePair struct {
	t       *testing.T
	rng     *rand.Rand
	dirs    []string
	now     time.Time
	partial *Store
	full    *Store
	touched map[string]bool
}

func newStorePair(t *testing.T, seed uint64) *storePair {
	root := t.TempDir()
	w := &storePair{t: t, rng: rand.New(rand.NewPCG(seed, 7)), dirs: []string{filepath.Join(root, "a"), filepath.Join(root, "a", "b"), filepath.Join(root, "a-c")}, now: time.Unix(1e9, 0)}
	for _, dir := range w.dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	make := func() *Store {
		store, err := New(Config{Paths: []string{w.dirs[2], w.dirs[0]}, Now: func() time.Time { return w.now }})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	w.partial, w.full = make(), make()
	return w
}

// document returns a valid or invalid text of a random service.
func (w *storePair) document() string {
	text := service(fmt.Sprintf("s%d", w.rng.IntN(8)), 1+w.rng.IntN(4))
	switch w.rng.IntN(8) {
	case 0:
		return strings.Replace(text, "port:", "prot:", 1)
	case 1:
		return strings.Replace(text, "kind: Service", "kind: Deployment", 1)
	}
	return text
}

func (w *storePair) text() string {
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

func (w *storePair) path() string {
	names := []string{"a.yaml", "b.yaml", "b-c.yaml", "c.json", "d.txt", ".e.yaml"}
	return filepath.Join(w.dirs[w.rng.IntN(len(w.dirs))], names[w.rng.IntN(len(names))])
}

// edit applies a random change and records the events that the system would report.
func (w *storePair) edit() {
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

func (w *storePair) scan() {
	w.partial.scan(w.touched)
	maps.Copy(w.full.scanned, w.full.files)
	w.full.scan(w.touched)
}

func (w *storePair) compare(step int) {
	w.t.Helper()
	resources := func(s *Store) (out []string) {
		for _, r := range s.List(config.Service) {
			out = append(out, fmt.Sprint(r.Key, r.Origin, r.Spec))
		}
		return out
	}
	left := func(s *Store) (out []string) {
		for _, d := range s.retainedDocuments() {
			out = append(out, fmt.Sprint(d.path, d.resource.Key, d.since.UnixNano()))
		}
		slices.Sort(out)
		return out
	}
	compareLists(w.t, step, "resources", resources(w.partial), resources(w.full))
	compareLists(w.t, step, "order", w.partial.order, w.full.order)
	compareLists(w.t, step, "problems", w.partial.Problems(), w.full.Problems())
	compareLists(w.t, step, "documents", w.partial.Documents(), w.full.Documents())
	compareLists(w.t, step, "count of problems", []int{w.partial.report.count}, []int{len(w.full.Problems())})
	compareLists(w.t, step, "files to look at again", slices.Sorted(maps.Keys(w.partial.rescanSoon)), slices.Sorted(maps.Keys(w.full.rescanSoon)))
	compareLists(w.t, step, "what would be lost in a restart", left(w.partial), left(w.full))
}

func compareLists[T comparable](t *testing.T, step int, what string, some, all []T) {
	t.Helper()
	for i := range max(len(some), len(all)) {
		if i >= len(some) || i >= len(all) || some[i] != all[i] {
			t.Fatalf("step %d: %s differ from number %d on: reading only changed files returns\n%v\nreading all files\n%v", step, what, i, some[min(i, len(some)):], all[min(i, len(all)):])
		}
	}
}

func TestScanOfChangedFilesEqualsScanOfAllFiles(t *testing.T) {
	for seed := range uint64(12) {
		w := newStorePair(t, seed)
		for step := range 60 {
			w.edit()
			w.scan()
			w.compare(step)
		}
	}
}
