package lastgood

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// storage contains the files of a store, on disk or in memory. The current file is fileName.
type storage interface {
	// create creates an empty file and replaces an existing one.
	create(name string) (file, error)
	// openCurrent opens the current file for reading. It returns os.ErrNotExist if there is none.
	openCurrent() (source, error)
	// openAppend truncates the current file to at bytes and opens it for writing.
	openAppend(at int64) (file, error)
	// replace replaces the current file by the new one.
	replace() error
	remove(name string)
	// size returns the size of the current file.
	size() int64
	// releaseBuffers frees memory that only writing needs.
	releaseBuffers()
	close()
}

// file is an open file to which data is appended.
type file interface {
	io.WriteCloser
	Truncate(size int64) error
	Sync() error
}

// source is a file that is open for reading.
type source interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

// disk is a directory that this process has locked.
type disk struct {
	dir  string
	lock *os.File
}

func openDisk(dir string, readOnly bool) (*disk, error) {
	if err := prepareDir(dir, readOnly); err != nil {
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
	d.remove(newFileName)
	if readOnly {
		return d, nil
	}
	probe, err := d.create(newFileName) // fails if an existing directory is not writable
	if err != nil {
		d.close()
		return nil, err
	}
	_ = probe.Close()
	d.remove(newFileName)
	return d, nil
}

// prepareDir creates the directory, or restricts the mode of an existing one. It fails if the directory contains other
// files.
func prepareDir(dir string, readOnly bool) error {
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
		if name := e.Name(); name != fileName && name != newFileName && name != "lost+found" {
			return fmt.Errorf("%s contains another file, %s: use an empty directory for the last good configuration", dir, name)
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

func (d *disk) openCurrent() (source, error) {
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

func (d *disk) openAppend(at int64) (file, error) {
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

func (d *disk) replace() error { return os.Rename(d.path(newFileName), d.path(fileName)) }

func (d *disk) remove(name string) { _ = os.Remove(d.path(name)) }

func (d *disk) size() int64 {
	info, err := os.Stat(d.path(fileName))
	if err != nil {
		return 0
	}
	return info.Size()
}

func (d *disk) releaseBuffers() {}

func (d *disk) close() { _ = d.lock.Close() }
