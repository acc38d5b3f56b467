// Package owner changes the owner of files, for an agent that runs as root while its Envoy runs as an unprivileged
// user. That user is not trusted, so the package does not follow symbolic links that the user may have created in place
// of a file.
package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Owner is a user and a group. The methods of a nil Owner do not change owners, so files belong to the user of this
// process.
type Owner struct{ UID, GID uint32 }

// Chown changes a file's owner. The file must belong to this process's user or to the owner, and must not have further
// hard links.
func (o *Owner) Chown(path string) error {
	if o == nil {
		return nil
	}
	if err := chownChecked(path, o); err != nil {
		return fmt.Errorf("changing the owner of %s to user %d: %w", path, o.UID, err)
	}
	return nil
}

// ChownOpen changes the owner of an open file.
func (o *Owner) ChownOpen(f *os.File) error {
	if o == nil {
		return nil
	}
	return f.Chown(int(o.UID), int(o.GID))
}

// MakeReadable makes a file or directory readable for the owner's group, but not for other users. The file must be in a
// directory that belongs to this process's user. This user becomes the file's owner.
func (o *Owner) MakeReadable(path string) error {
	if o == nil {
		return nil
	}
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	mode := fs.FileMode(0o640)
	switch {
	case info.IsDir():
		mode = 0o750
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: remove it", path)
	}
	if err := os.Lchown(path, os.Geteuid(), int(o.GID)); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// MkdirAll creates a directory and its missing parents with mode 0711, so that the owner can enter them. A nil Owner
// creates them with the specified mode.
func (o *Owner) MkdirAll(dir string, mode fs.FileMode) error {
	if o == nil {
		return os.MkdirAll(dir, mode)
	}
	var made []string
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Lstat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, at)
	}
	err := os.MkdirAll(dir, enterable)
	for _, at := range made {
		err = errors.Join(err, os.Chmod(at, enterable)) // the umask may have removed bits
	}
	return err
}

const enterable = 0o711
