package testenv

import (
	"os"
	"path/filepath"
	"testing"
)

// InDir changes the working directory to a temporary directory until the test ends. It creates files there. The keys of
// the map are relative paths.
func InDir(t *testing.T, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
}
