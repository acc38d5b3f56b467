package redirect

import (
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// savedSettings is the part of a saved configuration that contains the options.
type savedSettings struct {
	Options map[string]string `json:"options" yaml:"options"`
}

// readSaved reads a saved configuration in YAML or JSON.
func readSaved(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the saved options of --config: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileSize))
	if err != nil {
		return nil, fmt.Errorf("reading the saved options of --config: %w", err)
	}
	return parseSaved(path, text)
}

func parseSaved(path string, text []byte) (map[string]string, error) {
	var doc savedSettings
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, usagef("%s is not a saved configuration: %w", path, err)
	}
	if doc.Options == nil {
		return nil, usagef("%s has no options: save one with `iptables --save FILE`, or with `iptables show -o yaml`", path)
	}
	return doc.Options, nil
}

// writeFile replaces a file atomically.
func writeFile(path string, text []byte) error {
	d, err := newPendingFile(path, text)
	if err != nil {
		return err
	}
	defer d.discard()
	return d.commit()
}

// pendingFile is a temporary file that commit renames to path.
type pendingFile struct {
	path string
	file *atomicfile.Draft
}

// newPendingFile writes text to a temporary file for path. It fails if path is a directory.
func newPendingFile(path string, text []byte) (*pendingFile, error) {
	if is, err := os.Stat(path); err == nil && is.IsDir() {
		return nil, fmt.Errorf("save %s: it is a directory: name a file", path)
	}
	f, err := atomicfile.NewDraft(path, text, 0o600)
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	return &pendingFile{path, f}, nil
}

func (d *pendingFile) commit() error {
	if err := d.file.Commit(); err != nil {
		return fmt.Errorf("save %s: %w", d.path, err)
	}
	return nil
}

func (d *pendingFile) discard() { d.file.Discard() }
