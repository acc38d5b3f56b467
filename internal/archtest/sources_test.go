package archtest

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func root() string { return testenv.Root() }

func readRepositoryFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources returns the files of the repository whose names end with one of the suffixes, relative to the root. It omits
// generated files and test data.
func sources(t *testing.T, suffixes ...string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != root() && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin") {
			return filepath.SkipDir
		}
		if !d.IsDir() && !strings.HasSuffix(name, ".pb.go") && slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) }) {
			relative, err := filepath.Rel(root(), path)
			if err != nil {
				return err
			}
			files = append(files, relative)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files found under %s", len(files), root())
	}
	return files
}
