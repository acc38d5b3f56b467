package lastgood

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// shelf is where the files of a store are: on disk, or in memory.
type shelf interface {
	// create makes an empty file, in place of one that there is.
	create(name string) (file, error)
	// read opens the file that counts, as it is at the moment. The error is os.ErrNotExist when there is none.
	read() (source, error)
	// resume opens the file that counts for writing, after its first so many bytes; what followed them is gone.
	resume(at int64) (file, error)
	// replace lets the new file take the place of the one that counts.
	replace() error
	remove(name string)
	// size is that of the file that counts.
	size() int64
	// settle frees what only writing needs.
	settle()
	close()
}

// file is written at its end.
type file interface {
	io.WriteCloser
	Truncate(size int64) error
	Sync() error
}

// source is a file that is read.
type source interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// disk is a directory, which this process has to itself.
type disk struct {
	dir  string
	lock *os.File
}

func openDisk(dir string, readOnly bool) (*disk, error) {
	if err := prepare(dir, readOnly); err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := lockFile(lock); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	d := &disk{dir: dir, lock: lock}
	d.remove(newName)
	if readOnly {
		return d, nil
	}
	probe, err := d.create(newName) // which a directory that is there already may refuse
	if err != nil {
		d.close()
		return nil, err
	}
	_ = probe.Close()
	d.remove(newName)
	return d, nil
}

// prepare makes the directory, or takes one that nobody else uses: its mode is going to change.
func prepare(dir string, readOnly bool) error {
	if !readOnly {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name != fileName && name != newName && name != "lost+found" {
			return fmt.Errorf("%s has something else in it, %s: name a directory for the last good configuration alone", dir, name)
		}
	}
	if readOnly {
		return nil
	}
	return os.Chmod(dir, 0o700)
}

func (d *disk) path(name string) string { return filepath.Join(d.dir, name) }

func (d *disk) create(name string) (file, error) {
	if err := os.Remove(d.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	f, err := os.OpenFile(d.path(name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func (d *disk) read() (source, error) {
	f, err := openRegular(d.path(fileName))
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return diskSource{f, info.Size()}, nil
}

type diskSource struct {
	*os.File
	size int64
}

func (s diskSource) Size() int64 { return s.size }

func (d *disk) resume(at int64) (file, error) {
	f, err := os.OpenFile(d.path(fileName), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(at)
	if err == nil {
		_, err = f.Seek(at, io.SeekStart)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (d *disk) replace() error { return os.Rename(d.path(newName), d.path(fileName)) }

func (d *disk) remove(name string) { _ = os.Remove(d.path(name)) }

func (d *disk) size() int64 {
	info, err := os.Stat(d.path(fileName))
	if err != nil {
		return 0
	}
	return info.Size()
}

func (d *disk) settle() {}

func (d *disk) close() { _ = d.lock.Close() }
