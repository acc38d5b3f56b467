package lastgood

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// fileSuffix is the suffix of the names of snapshot files. draftPrefix is the prefix of the names of files that are
	// not complete yet.
	fileSuffix  = ".snapshot"
	draftPrefix = ".draft-"
)

// directory is the directory of the snapshot files. This process holds its lock.
type directory struct {
	path string
	lock *os.File
	// written is the number of bytes that replace has written.
	written int64
}

// openFirst opens the first usable directory. If none is usable, it returns the errors of all.
func openFirst(paths []string) (*directory, error) {
	var failed error
	for _, path := range paths {
		d, err := openDirectory(path)
		if err == nil {
			return d, nil
		}
		failed = errors.Join(failed, err)
	}
	return nil, failed
}

// openDirectory creates the directory if necessary and locks it. It fails if the directory is not writable or contains
// other files.
func openDirectory(path string) (*directory, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	d := &directory{path: path, lock: lock}
	if err = lockFile(lock); err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	} else if err = d.removeRemnants(); err == nil {
		err = os.Chmod(path, 0o700)
	}
	if err == nil {
		err = d.checkWritable()
	}
	if err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

// removeRemnants removes incomplete files of an interrupted save, and files of earlier versions of this program. It
// fails if the directory contains a file that this program did not create.
func (d *directory) removeRemnants() error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	var remnants []string
	for _, e := range entries {
		switch name := e.Name(); {
		case strings.HasSuffix(name, fileSuffix) || name == "lost+found":
		case strings.HasPrefix(name, draftPrefix) || name == "configuration.log" || name == "configuration.new":
			remnants = append(remnants, name)
		default:
			return fmt.Errorf("%s contains another file, %s: use an empty directory for the last accepted configuration", d.path, name)
		}
	}
	for _, name := range remnants {
		if err := os.Remove(filepath.Join(d.path, name)); err != nil {
			return err
		}
	}
	return nil
}

func (d *directory) checkWritable() error {
	f, err := d.createDraft()
	if err != nil {
		return err
	}
	_ = f.Close()
	return os.Remove(f.Name())
}

// createDraft creates an empty file with a temporary name and mode 0600.
func (d *directory) createDraft() (*os.File, error) { return os.CreateTemp(d.path, draftPrefix) }

func (d *directory) close() { _ = d.lock.Close() }

var plainName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

// file returns the path of a type's snapshot file, whose name is the last part of the type URL. It fails if that part
// is not a valid file name.
func (d *directory) file(typeURL string) (string, error) {
	name := typeURL[strings.LastIndexByte(typeURL, '/')+1:]
	if !plainName.MatchString(name) {
		return "", fmt.Errorf("the type URL %.100q does not end in a message name", typeURL)
	}
	return filepath.Join(d.path, name+fileSuffix), nil
}

// files returns the paths of all snapshot files.
func (d *directory) files() ([]string, error) {
	return filepath.Glob(filepath.Join(d.path, "*"+fileSuffix))
}

// size returns the total size of the snapshot files, except the one at the path except.
func (d *directory) size(except string) (bytes int64) {
	files, _ := d.files()
	for _, path := range files {
		if info, err := os.Stat(path); err == nil && path != except {
			bytes += info.Size()
		}
	}
	return bytes
}

// markUpToDate records that the configuration is up to date at the time now. It sets the modification time of all
// snapshot files, which load returns as UpToDate.
func (d *directory) markUpToDate(now time.Time) error {
	files, err := d.files()
	for _, path := range files {
		err = errors.Join(err, os.Chtimes(path, now, now))
	}
	return err
}

// replace calls write to write a new file, and then renames it atomically to path. now becomes the modification time of
// the file. After an error, the file at path is unchanged.
func (d *directory) replace(path string, now time.Time, write func(*bufio.Writer) error) error {
	f, err := d.createDraft()
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(f, bufferSize)
	if err = write(out); err == nil {
		err = out.Flush()
	}
	if size, e := f.Seek(0, io.SeekCurrent); e == nil {
		d.written += size
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Chtimes(f.Name(), now, now)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// isMissing reports whether err means that a file does not exist.
func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
