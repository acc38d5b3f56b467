package redirect

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
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
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // 0600
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}
