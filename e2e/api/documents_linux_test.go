package api

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// writeWhole writes a file atomically: a part of the documents would be another configuration.
func writeWhole(path, content string) error {
	partial := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	return errors.Join(os.WriteFile(partial, []byte(content), 0o644), os.Rename(partial, path))
}

func (w *testMesh) write(t *testing.T, path, content string) {
	t.Helper()
	if err := writeWhole(path, content); err != nil {
		t.Fatal(err)
	}
}

// lockMeshConfig acquires the mesh's configuration until done is called: shared, or exclusively if the row adds the
// fields in more to it.
func (w *testMesh) lockMeshConfig(t *testing.T, more string) (done func()) {
	t.Helper()
	if more == "" {
		w.configMu.RLock()
		return w.configMu.RUnlock
	}
	w.configMu.Lock()
	path := filepath.Join(w.dir, meshFile)
	w.write(t, path, meshConfig+more)
	return func() {
		if err := writeWhole(path, meshConfig); err != nil {
			t.Error(err)
		}
		w.configMu.Unlock()
	}
}

// storeLater stores the documents that the check of a row applies with applyLater.
func (w *testMesh) storeLater(host, docs string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.later[host] = docs
	delete(w.since, host)
}

// sinceFirstCheck returns the time since the check of a row first called it.
func (w *testMesh) sinceFirstCheck(host string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.since[host]; !ok {
		w.since[host] = time.Now()
	}
	return time.Since(w.since[host])
}

func (w *testMesh) laterFile(host string) string {
	return filepath.Join(w.dir, "istio", host+"-later.yaml")
}

// applyLater writes the later documents of a row to the mesh's configuration.
func (w *testMesh) applyLater(host string) error {
	w.mu.Lock()
	docs := w.later[host]
	w.mu.Unlock()
	return writeWhole(w.laterFile(host), docs)
}

// removeLater removes the later documents of a row.
func (w *testMesh) removeLater(host string) error {
	if err := os.Remove(w.laterFile(host)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
