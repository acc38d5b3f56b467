package api

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeWhole has a file there with all of its content, or not at all: half of the documents are another promise.
func writeWhole(path, content string) error {
	partial := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	return errors.Join(os.WriteFile(partial, []byte(content), 0o644), os.Rename(partial, path))
}

func (w *world) write(t *testing.T, path, content string) {
	t.Helper()
	if err := writeWhole(path, content); err != nil {
		t.Fatal(err)
	}
}

// share keeps rows that change the mesh itself from running beside others, until done.
func (w *world) share(t *testing.T, more string) (done func()) {
	t.Helper()
	if more == "" {
		w.whole.RLock()
		return w.whole.RUnlock
	}
	w.whole.Lock()
	path := filepath.Join(w.dir, meshFile)
	w.write(t, path, meshConfig+more)
	return func() {
		if err := writeWhole(path, meshConfig); err != nil {
			t.Error(err)
		}
		w.whole.Unlock()
	}
}

// promise keeps documents for the check of a row to put into force.
func (w *world) promise(host, docs string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later[host] = docs
	delete(w.since, host)
}

// sinceFirst says for how long the check of a row has asked.
func (w *world) sinceFirst(host string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.since[host]; !ok {
		w.since[host] = time.Now()
	}
	return time.Since(w.since[host])
}

func (w *world) laterFile(host string) string {
	return filepath.Join(w.dir, "istio", host+"-later.yaml")
}

// andThen puts the later documents of a row into force.
func (w *world) andThen(host string) error {
	w.mu.Lock()
	docs := w.later[host]
	w.mu.Unlock()
	return writeWhole(w.laterFile(host), docs)
}

// butFirst takes the later documents of a row out of force again.
func (w *world) butFirst(host string) error {
	if err := os.Remove(w.laterFile(host)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
