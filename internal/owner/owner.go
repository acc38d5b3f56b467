// Package owner gives files to another user: an agent that runs as root has its Envoy run as somebody who is not. That user
// is not trusted with more than what is his: where he may have made a link in the place of a file, it is not followed.
package owner

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Owner is a user and a group. A nil one is this process's own user, who has what it makes already.
type Owner struct{ UID, GID uint32 }

// Give makes a file the owner's. It has to be this process's, or the owner's already, and to have no other name.
func (o *Owner) Give(path string) error {
	if o == nil {
		return nil
	}
	if err := give(path, o); err != nil {
		return fmt.Errorf("giving %s to user %d: %w", path, o.UID, err)
	}
	return nil
}

// GiveOpen makes an open file the owner's.
func (o *Owner) GiveOpen(f *os.File) error {
	if o == nil {
		return nil
	}
	return f.Chown(int(o.UID), int(o.GID))
}

// Show lets the owner's group read a file, or enter and list a directory, that is in a directory of this process's user. The
// file is this process's, and others may do nothing with it.
func (o *Owner) Show(path string) error {
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
		return fmt.Errorf("%s is no file: remove it", path)
	}
	if err := os.Lchown(path, os.Geteuid(), int(o.GID)); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// MkdirAll makes a directory, and those above it that are missing, so that the owner may enter them; with no owner, with
// that mode.
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
		err = errors.Join(err, os.Chmod(at, enterable)) // whatever the mask took away
	}
	return err
}

const enterable = 0o711
