// Package atomicfile replaces files atomically.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces the file's content. The file then has mode 0600. A reader always finds either the old or the new
// content, even after a crash. After an error, no temporary file remains. Errors are those of package os and contain
// the path.
func Write(file string, data []byte) error {
	d, err := NewDraft(file, data, 0o600)
	if err != nil {
		return err
	}
	defer d.Discard()
	if err := d.Sync(); err != nil {
		return err
	}
	return d.Commit()
}

// Draft is a temporary file in the directory of the file that it will replace.
type Draft struct{ path, temporary string }

// NewDraft writes data to a temporary file with mode. It fails if the disk is full or permissions are missing.
func NewDraft(file string, data []byte, mode os.FileMode) (*Draft, error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return nil, err
	}
	d := &Draft{path: file, temporary: f.Name()}
	_, err = f.Write(data)
	if err == nil && mode != 0o600 {
		err = f.Chmod(mode)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		d.Discard()
		return nil, err
	}
	return d, nil
}

// Sync syncs the draft to disk, so that its content survives a crash of the machine.
func (d *Draft) Sync() error {
	f, err := os.OpenFile(d.temporary, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Commit renames the draft to its final path.
func (d *Draft) Commit() error { return os.Rename(d.temporary, d.path) }

// Discard removes the draft. After Commit it has no effect.
func (d *Draft) Discard() { _ = os.Remove(d.temporary) }
