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

	"github.com/pilotfish-mesh/pilotfish/internal/plainfile"
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
func (d *disk) write(path string, content []byte, mode fs.FileMode) error {
	return d.copy(path, bytes.NewReader(content), mode)
}

// copy replaces a file by what can be read.
func (d *disk) copy(path string, from io.Reader, mode fs.FileMode) error {
	return d.replace(path, from, mode, nil)
}

// replace does it if ready, asked at the last moment, has no objection. nil has none.
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
	if err := temp.Close(); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	if ready != nil {
		if err := ready(); err != nil {
			return err
		}
	}
	return d.rename(temp.Name(), path)
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

// behindLink is the file that a link leads to, which is to be written in place of the link: whoever made the link looks at
// what is behind it.
func behindLink(path string) string {
	if info, err := os.Lstat(path); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return path
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		return to
	}
	return path
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

// errChanged says that somebody else has changed a file since it was read.
var errChanged = errors.New("another program is changing it")

// unchanged fails when a file is not what was read of it. Writing takes its time on a disk, and what another program wrote
// meanwhile, which is newer than what was read, would be lost.
func unchanged(path string, was []byte) error {
	now, err := read(path, maxConf)
	if err == nil && (now.exists != (was != nil) || string(now.content) != string(was)) {
		err = fmt.Errorf("%s: %w", path, errChanged)
	}
	return err
}

// file is a file as it is at one moment.
type file struct {
	exists  bool
	content []byte
	mode    fs.FileMode
}

// read takes a file of bounded size; one that is not there is no error.
func read(path string, most int64) (file, error) {
	f, info, err := plainfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return file{}, nil
	}
	if err != nil {
		return file{}, err
	}
	defer func() { _ = f.Close() }()
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
	path   string
	was    file
	backup string // of a large file, in place of its content
}

// write replaces a file, unless it is as it should be, and notes what it was.
func (c *changes) write(path string, content []byte, mode fs.FileMode) (changed bool, err error) {
	return c.writeOver(path, content, mode, nil)
}

// writeOver does it for what was made of files that others write too: ready fails if one is no longer what it was made of.
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
		c.done = c.done[:len(c.done)-1] // nothing was done, and what it was is no longer right
	}
	return true, err
}

// copy replaces a large file by another, unless they are the same, and keeps what it was beside it.
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
			return fmt.Errorf("keeping what was there: %w", err)
		}
	}
	c.done = append(c.done, u)
	return c.disk.copy(path, f, mode)
}

// sameFiles compares without holding either in memory. from has to be there.
func sameFiles(path, from string, mode fs.FileMode) (bool, error) {
	b, wanted, err := plainfile.Open(from)
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
	a, _, err := plainfile.Open(path)
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

// remove takes a file away and notes what it was.
func (c *changes) remove(path string) (changed bool, err error) {
	was, err := read(path, maxConf)
	if err != nil || !was.exists {
		return false, err
	}
	c.done = append(c.done, change{path: path, was: was})
	return true, c.disk.remove(path)
}

// undo brings back what was, the last change first.
func (c *changes) undo() error {
	var errs []error
	for i := len(c.done) - 1; i >= 0; i-- {
		if err := c.undoOne(c.done[i]); err != nil {
			errs = append(errs, fmt.Errorf("bringing back %s: %w", c.done[i].path, err))
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
		return c.bringBack(u)
	}
	return c.disk.write(u.path, u.was.content, u.was.mode)
}

// bringBack puts a kept file back. Where it was not replaced yet both names are of one file, which rename leaves alone.
func (c *changes) bringBack(u change) error {
	if err := c.disk.rename(u.backup, u.path); err != nil {
		return err
	}
	return c.disk.remove(u.backup)
}

// keep gives up the way back.
func (c *changes) keep() {
	for _, u := range c.done {
		if u.backup != "" {
			_ = c.disk.remove(u.backup) // at worst the next sweep does it
		}
	}
}
