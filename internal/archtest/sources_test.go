package archtest

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// unrevised are folders, with all below them, in which some names are still to be revised. Remove a folder when they are.
var unrevised = []string{"cni", "e2e", "iptables", "wasm"}

func isUnrevised(folder string) bool {
	return slices.ContainsFunc(unrevised, func(u string) bool { return folder == u || strings.HasPrefix(folder, u+"/") })
}

func TestUnrevisedFoldersExist(t *testing.T) {
	for _, u := range unrevised {
		if found, _ := filepath.Glob(filepath.Join(root(), u)); len(found) == 0 {
			t.Errorf("%s does not exist: remove it from the list", u)
		}
	}
}

func root() string { return testenv.Root() }

// sources returns the files of the repository that end in one of the suffixes, relative to its root, without generated and test data.
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
