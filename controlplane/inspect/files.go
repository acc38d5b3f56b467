package inspect

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/controlplane"
)

// secretKind finds documents of Kubernetes Secrets in YAML and JSON.
var secretKind = regexp.MustCompile(`(?m)(^|[{,\s])"?kind"?\s*:\s*["']?Secret["']?\s*($|[,}#])`)

// ReadFiles reads the files of directories, as a control plane does, and single files. Documents that are Secrets stay
// here: what goes to a control plane goes in plaintext.
func ReadFiles(paths []string) ([]controlplane.DiffFile, error) {
	var files []controlplane.DiffFile
	for _, path := range paths {
		err := filepath.WalkDir(path, func(name string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			hidden := name != path && strings.HasPrefix(entry.Name(), ".")
			switch {
			case entry.IsDir() && hidden:
				return filepath.SkipDir
			case entry.IsDir(), name != path && (hidden || !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))):
				return nil
			}
			text, err := os.ReadFile(name)
			if err == nil {
				files = append(files, controlplane.DiffFile{Name: name, Text: withoutSecrets(string(text))})
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, err)
		}
	}
	return files, nil
}

var separator = regexp.MustCompile(`(?m)^---.*$`)

// withoutSecrets blanks the documents that are Secrets; the lines of the others stay where they are.
func withoutSecrets(text string) string {
	if !secretKind.MatchString(text) {
		return text
	}
	var out strings.Builder
	from := 0
	for _, cut := range append(separator.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		document := text[from:cut[0]]
		if secretKind.MatchString(document) {
			document = strings.Repeat("\n", strings.Count(document, "\n"))
		}
		out.WriteString(document + text[cut[0]:cut[1]])
		from = cut[1]
	}
	return out.String()
}
