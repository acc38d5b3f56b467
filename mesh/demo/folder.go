package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/pilotfish-mesh/pilotfish/examples"
)

// topologyFile is the name of the topology file in the example's directory.
const topologyFile = "mesh.yaml"

// writeExample writes the files of the example into a directory, which it creates if necessary. It fails if one of the
// files already exists.
func writeExample(dir string) error {
	example := examples.Bookshop()
	return fs.WalkDir(example, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(dir, filepath.FromSlash(name))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := fs.ReadFile(example, name)
		if err != nil {
			return err
		}
		return writeNew(target, data)
	})
}

func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s already exists and is not overwritten: name an empty or new directory", path)
	}
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// privateExample writes the example into a new temporary directory that only this user can read.
func privateExample() (dir string, err error) {
	dir, err = os.MkdirTemp("", "pilotfish-demo-")
	if err != nil {
		return "", fmt.Errorf("creating a temporary directory for the example: %w (TMPDIR selects another location)", err)
	}
	if err := writeExample(dir); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("writing the example: %w", err)
	}
	return dir, nil
}
