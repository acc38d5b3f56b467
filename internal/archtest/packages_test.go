package archtest

import (
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

var packageRow = regexp.MustCompile("(?m)^\\| `((?:controlplane|internal)/[a-z/]+)` \\|")

func TestArchitectureListsEachPackage(t *testing.T) {
	var documented []string
	for _, m := range packageRow.FindAllStringSubmatch(readRepositoryFile(t, "docs/architecture.md"), -1) {
		documented = append(documented, m[1])
	}
	var want []string
	for _, folder := range []string{"controlplane/", "internal/"} {
		for _, file := range sources(t, ".go") {
			if dir := filepath.Dir(file); len(dir) > len(folder) && dir[:len(folder)] == folder && !slices.Contains(want, dir) {
				want = append(want, dir)
			}
		}
	}
	for _, dir := range want {
		if !slices.Contains(documented, dir) {
			t.Errorf("docs/architecture.md has no row for %s", dir)
		}
	}
	for _, dir := range documented {
		if !slices.Contains(want, dir) {
			t.Errorf("docs/architecture.md has a row for %s, which is not a package", dir)
		}
	}
}
