// Package owner gives files to another user: an agent that runs as root has its Envoy run as somebody who is not.
package owner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Owner is a user and a group. A nil one is this process's own user, who has what it makes already.
type Owner struct{ UID, GID uint32 }

// Give makes the files the owner's, not those that symbolic links lead to.
func (o *Owner) Give(paths ...string) error {
	if o == nil {
		return nil
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.Lchown(path, int(o.UID), int(o.GID)))
	}
	return errors.Join(errs...)
}

// GiveTree makes a directory the owner's, with all that is in it.
func (o *Owner) GiveTree(dir string) error {
	if o == nil {
		return nil
	}
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return o.Give(path)
	})
}

// GiveOpen makes an open file the owner's.
func (o *Owner) GiveOpen(f *os.File) error {
	if o == nil {
		return nil
	}
	return f.Chown(int(o.UID), int(o.GID))
}
