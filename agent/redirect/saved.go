package redirect

import (
	"fmt"
	"io"
	"os"

	"go.yaml.in/yaml/v3"

	"github.com/pilotfish-mesh/pilotfish/internal/atomicfile"
)

// saved is the part of what `show` prints and apply saves that the options are read from again.
type saved struct {
	Options map[string]string `json:"options" yaml:"options"`
}

// read takes JSON too, which is YAML.
func read(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return nil, err
	}
	return parseSaved(path, text)
}

func parseSaved(path string, text []byte) (map[string]string, error) {
	var doc saved
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, usagef("%s is no saved configuration: %w", path, err)
	}
	if doc.Options == nil {
		return nil, usagef("%s has no options: save one with `iptables --save FILE`, or with `iptables show -o yaml`", path)
	}
	return doc.Options, nil
}

// write replaces the file whole.
func write(path string, text []byte) error {
	d, err := newDraft(path, text)
	if err != nil {
		return err
	}
	defer d.discard()
	return d.keep()
}

// draft is a file that is written, and not yet in its place.
type draft struct {
	path string
	file *atomicfile.Draft
}

// newDraft fails where the file could not be put in its place.
func newDraft(path string, text []byte) (*draft, error) {
	if is, err := os.Stat(path); err == nil && is.IsDir() {
		return nil, fmt.Errorf("save %s: it is a folder: name a file", path)
	}
	f, err := atomicfile.NewDraft(path, text, 0o600)
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", path, err)
	}
	return &draft{path, f}, nil
}

func (d *draft) keep() error {
	if err := d.file.Keep(); err != nil {
		return fmt.Errorf("save %s: %w", d.path, err)
	}
	return nil
}

func (d *draft) discard() { d.file.Discard() }
