package wasm

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// sized returns a module of the specified size, whose content is incompressible.
func sized(n int) []byte {
	b := append(bytes.Clone(tiny), make([]byte, n)...)
	for i := len(tiny); i < len(b); i++ {
		b[i] = byte(rand.Uint32())
	}
	return b
}

func TestFullDiskEvictsOnlyUnusedModules(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system of its own can be made here: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	o := serve(t, nil)
	fetch := func(m *Modules, name, filter string, size int) (string, error) {
		o.now(gives(sized(size)))
		return m.File(context.Background(), Module{URL: o.URL + "/" + name, Resource: filter})
	}
	onDisk := func(c *Config) { c.Dir = disk; c.Retries = -1 }

	if _, err := fetch(running(t, onDisk), "old", "a", 150<<10); err != nil {
		t.Fatal(err)
	}
	m := running(t, onDisk) // a new process, whose filters do not use the module
	if _, err := fetch(m, "used", "b", 50<<10); err != nil {
		t.Fatal(err)
	}
	if _, err := fetch(m, "new", "c", 150<<10); err != nil {
		t.Fatalf("the module should fit on the disk: %v", err)
	}
	if _, err := fetch(m, "huge", "d", 150<<10); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("fetching a module that does not fit on the disk: %v", err)
	}
	if _, err := fetch(m, "used", "b", 1); err != nil || o.requests.Load() != 5 {
		t.Errorf("a module in use must stay cached: %v, after %d requests", err, o.requests.Load())
	}
	if left, _ := filepath.Glob(filepath.Join(disk, tempPrefix+"*")); len(left) > 0 {
		t.Errorf("temporary files remain: %v", left)
	}
	modules, _ := filepath.Glob(filepath.Join(disk, "*", "*.wasm"))
	if info, err := os.Stat(filepath.Join(disk, indexName)); err != nil || info.Size() == 0 || len(modules) != 2 {
		t.Errorf("%v, %v", modules, err)
	}
}
