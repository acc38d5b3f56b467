package install

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// staging marks files that are being written. Their names begin with a dot and end in no extension that a container
// runtime reads.
const staging = ".pilotfish-staging-"

// maxConf bounds the configuration files that are read.
const maxConf = 4 << 20

// disk makes all changes to files, each at once and lasting: temporary file, fsync, rename, fsync of the folder.
type disk struct {
	// before is told of each primitive step, and can make it fail; nil outside tests.
	before func(step, path string) error
}

func (d *disk) step(name, path string) error {
	if d.before == nil {
		return nil
	}
	return d.before(name, path)
}

// write replaces a file.
func (d *disk) write(path string, content []byte, mode fs.FileMode) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := d.step("create", path); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), staging+"*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && d.step("discard", temp.Name()) == nil {
			_ = os.Remove(temp.Name())
		}
	}()
	if err := d.fill(temp, content, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, temp.Close()))
	}
	if err := temp.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return d.rename(temp.Name(), path)
}

func (d *disk) fill(f *os.File, content []byte, mode fs.FileMode) error {
	if err := d.step("write", f.Name()); err != nil {
		return err
	}
	if _, err := f.Write(content); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := d.step("fsync", f.Name()); err != nil {
		return err
	}
	return f.Sync()
}

func (d *disk) rename(from, to string) error {
	if err := d.step("rename", to); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return d.syncDir(filepath.Dir(to))
}

// remove takes a file away that may be gone already.
func (d *disk) remove(path string) error {
	if err := d.step("remove", path); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return d.syncDir(filepath.Dir(path))
}

func (d *disk) syncDir(dir string) error {
	if err := d.step("fsync folder", dir); err != nil {
		return err
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}

// sweep removes what a run that was killed had begun to write.
func (d *disk) sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), staging) {
			if err := d.remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// file is a file as it is at one moment.
type file struct {
	exists  bool
	content []byte
	mode    fs.FileMode
}

// read takes a file of bounded size; one that is not there is no error.
func read(path string, most int64) (file, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, nil
	}
	if err != nil {
		return file{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return file{}, err
	}
	if !info.Mode().IsRegular() {
		return file{}, fmt.Errorf("%s is no regular file", path)
	}
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", path, most)
	}
	return file{exists: true, content: content, mode: info.Mode().Perm()}, err
}

// changes are what was done since a moment, so that it can be taken back.
type changes struct {
	disk *disk
	done []change
}

type change struct {
	path string
	was  file
}

// write replaces a file, unless it is as it should be, and notes what it was.
func (c *changes) write(path string, content []byte, mode fs.FileMode, most int64) (changed bool, err error) {
	was, err := read(path, most)
	if err != nil {
		return false, err
	}
	if was.exists && was.mode == mode && string(was.content) == string(content) {
		return false, nil
	}
	c.done = append(c.done, change{path, was})
	return true, c.disk.write(path, content, mode)
}

// remove takes a file away and notes what it was.
func (c *changes) remove(path string) (changed bool, err error) {
	was, err := read(path, maxConf)
	if err != nil || !was.exists {
		return false, err
	}
	c.done = append(c.done, change{path, was})
	return true, c.disk.remove(path)
}

// undo brings back what was, the last change first.
func (c *changes) undo() error {
	var errs []error
	for i := len(c.done) - 1; i >= 0; i-- {
		u := c.done[i]
		var err error
		if u.was.exists {
			err = c.disk.write(u.path, u.was.content, u.was.mode)
		} else {
			err = c.disk.remove(u.path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("bringing back %s: %w", u.path, err))
		}
	}
	c.done = nil
	return errors.Join(errs...)
}
