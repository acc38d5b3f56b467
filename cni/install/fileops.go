package install

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/pilotfish-mesh/pilotfish/internal/regularfile"
)

// staging is the prefix of temporary file names. Container runtimes ignore these files, because they do not have the
// extension of a CNI configuration.
const staging = ".pilotfish-staging-"

// maxConf limits the size of configuration files, in bytes.
const maxConf = 4 << 20

// disk changes files atomically and durably: temporary file, fsync, rename, fsync of the directory.
type disk struct {
	// before is called before each file operation and can make it fail; nil outside tests.
	before func(step, path string) error
}

func (d *disk) step(name, path string) error {
	if d.before == nil {
		return nil
	}
	return d.before(name, path)
}

// write replaces a file with content.
func (d *disk) write(path string, content []byte, mode fs.FileMode) error {
	return d.copy(path, bytes.NewReader(content), mode)
}

// copy replaces a file with the content of a reader.
func (d *disk) copy(path string, from io.Reader, mode fs.FileMode) error {
	return d.replace(path, from, mode, nil)
}

// replace replaces a file with the content of from. It calls ready immediately before the rename, and leaves the file
// unchanged if ready returns an error. ready may be nil.
func (d *disk) replace(path string, from io.Reader, mode fs.FileMode, ready func() error) (err error) {
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
	if err := d.fill(temp, from, mode); err != nil {
		return fmt.Errorf("writing %s: %w", path, errors.Join(err, temp.Close()))
	}
	// The temporary file stays open until the comparison below, so that the kernel does not reuse its inode number.
	defer func() { err = errors.Join(err, temp.Close()) }()
	written, err := temp.Stat()
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	if err := d.rename(temp.Name(), path); err != nil {
		return err
	}
	// Another program with write access to the directory may have replaced the temporary file before the rename.
	if info, err := os.Lstat(path); err == nil && !os.SameFile(info, written) {
		return fmt.Errorf("%w: another program replaced %s after it was written", errChanged, path)
	}
	return nil
}

func (d *disk) fill(f *os.File, from io.Reader, mode fs.FileMode) error {
	if err := d.step("write", f.Name()); err != nil {
		return err
	}
	if _, err := io.Copy(f, from); err != nil {
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

// resolveSymlink returns the target of a symbolic link, or the path itself for any other file. The installer replaces
// the target, and does not change the link, because another program created it.
func resolveSymlink(path string) string {
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
}

// remove removes a file. A missing file is not an error.
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

// sweep removes the temporary files that a killed process left in a directory.
func (d *disk) sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
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

// errChanged reports that another program has changed a file since it was read.
var errChanged = errors.New("another program is changing the file")

// checkUnchanged returns an error if the content of a file differs from was. The installer calls it immediately before
// it replaces the file. Otherwise it could overwrite a change that another program made in the meantime.
func checkUnchanged(path string, was []byte) error {
	now, err := read(path, maxConf)
	if err == nil && (now.exists != (was != nil) || string(now.content) != string(was)) {
		err = fmt.Errorf("%s: %w", path, errChanged)
	}
	return err
}

// file is the state of a file when it was read.
type file struct {
	exists  bool
	content []byte
	mode    fs.FileMode
}

// read reads a file. It returns an error if the file is larger than maxSize bytes. A missing file is not an error.
func read(path string, maxSize int64) (file, error) {
	f, info, err := regularfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return file{}, nil
	}
	if err != nil {
		return file{}, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && int64(len(content)) > maxSize {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxSize)
	}
	return file{exists: true, content: content, mode: info.Mode().Perm()}, err
}

// changes makes file changes and records them, so that undo can revert them.
type changes struct {
	disk *disk
	done []change
}

type change struct {
	path   string
	was    file   // state before this change
	backup string // hard link to the previous version of a large file, whose content is not in was
}

// write replaces a file if its content or mode differs, and records the previous state.
func (c *changes) write(path string, content []byte, mode fs.FileMode) (changed bool, err error) {
	return c.writeOver(path, content, mode, nil)
}

// writeOver is like write, for content that is based on a file of another program. It calls ready immediately before
// the replacement. ready returns an error if that file has changed since it was read.
func (c *changes) writeOver(path string, content []byte, mode fs.FileMode, ready func() error) (changed bool, err error) {
	was, err := read(path, maxConf)
	if err != nil {
		return false, err
	}
	if was.exists && was.mode == mode && string(was.content) == string(content) {
		return false, nil
	}
	c.done = append(c.done, change{path: path, was: was})
	err = c.disk.replace(path, bytes.NewReader(content), mode, ready)
	if errors.Is(err, errChanged) {
		c.done = c.done[:len(c.done)-1] // the file was not replaced, so undo must not touch it
	}
	return true, err
}

// copy replaces a large file with the content of from if they differ. It stores the previous version as a hard link in
// the same directory.
func (c *changes) copy(path, from string, mode fs.FileMode) error {
	if same, err := sameFiles(path, from, mode); err != nil || same {
		return err
	}
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	u := change{path: path}
	if _, err := os.Lstat(path); err == nil {
		u.was.exists, u.backup = true, filepath.Join(filepath.Dir(path), staging+"backup-"+filepath.Base(path))
		if err := c.disk.step("keep", path); err != nil {
			return err
		}
		if err := os.Link(path, u.backup); err != nil {
			return fmt.Errorf("creating a backup of %s: %w", path, err)
		}
	}
	c.done = append(c.done, u)
	return c.disk.copy(path, f, mode)
}

// sameFiles reports whether the file at path has this mode and the content of from. It returns an error if from does
// not exist.
func sameFiles(path, from string, mode fs.FileMode) (bool, error) {
	b, wanted, err := regularfile.Open(from)
	if err != nil {
		return false, err
	}
	defer func() { _ = b.Close() }()
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil || info.Size() != wanted.Size() || info.Mode() != mode {
		return false, err
	}
	a, _, err := regularfile.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = a.Close() }()
	sumA, errA := hash(a)
	sumB, errB := hash(b)
	return sumA == sumB, errors.Join(errA, errB)
}

func hash(f io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, f)
	return string(h.Sum(nil)), err
}

// remove removes a file and records its previous state. It reports whether the file existed.
func (c *changes) remove(path string) (changed bool, err error) {
	was, err := read(path, maxConf)
	if err != nil || !was.exists {
		return false, err
	}
	c.done = append(c.done, change{path: path, was: was})
	return true, c.disk.remove(path)
}

// undo reverts the changes in reverse order.
func (c *changes) undo() error {
	var errs []error
	for i := len(c.done) - 1; i >= 0; i-- {
		if err := c.undoOne(c.done[i]); err != nil {
			errs = append(errs, fmt.Errorf("restoring %s: %w", c.done[i].path, err))
		}
	}
	c.done = nil
	return errors.Join(errs...)
}

func (c *changes) undoOne(u change) error {
	switch {
	case !u.was.exists:
		return c.disk.remove(u.path)
	case u.backup != "":
		return c.restoreBackup(u)
	}
	return c.disk.write(u.path, u.was.content, u.was.mode)
}

// restoreBackup renames a backup to its original path. If the file was not replaced yet, both names are hard links to
// the same file. Then the rename has no effect, and the backup is removed separately.
func (c *changes) restoreBackup(u change) error {
	if err := c.disk.rename(u.backup, u.path); err != nil {
		return err
	}
	return c.disk.remove(u.backup)
}

// commit removes the backups. After it, undo is not possible.
func (c *changes) commit() {
	for _, u := range c.done {
		if u.backup != "" {
			_ = c.disk.remove(u.backup) // if this fails, the next sweep removes the backup
		}
	}
}
