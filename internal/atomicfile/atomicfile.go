// Package atomicfile replaces files whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write puts data into the file, readable to its owner only (0600). A reader, and a crash, finds what was there before or
// all of the new, and where it fails nothing is left beside. The errors are those of package os, and name a path.
func Write(file string, data []byte) error {
	d, err := NewDraft(file, data, 0o600)
	if err != nil {
		return err
	}
	defer d.Discard()
	if err := d.Sync(); err != nil {
		return err
	}
	return d.Keep()
}

// Draft is a file that is written beside its place, and is not in it yet.
type Draft struct{ path, at string }

// NewDraft writes one, with that mode. It fails where the file could not be put in its place, for want of room or rights.
func NewDraft(file string, data []byte, mode os.FileMode) (*Draft, error) {
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // mode 0600
	if err != nil {
		return nil, err
	}
	d := &Draft{path: file, at: f.Name()}
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

// Sync has it outlast a crash of the machine.
func (d *Draft) Sync() error {
	f, err := os.OpenFile(d.at, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// Keep puts it in its place.
func (d *Draft) Keep() error { return os.Rename(d.at, d.path) }

// Discard removes it, unless it was kept.
func (d *Draft) Discard() { _ = os.Remove(d.at) }
