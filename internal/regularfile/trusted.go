package regularfile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// maxLinks limits the number of symbolic links in one path. The kernel has the same limit.
const maxLinks = 40

// ReadTrusted reads a file that only root or this process's user can change. The file, each directory in its path and
// each symbolic link must belong to one of these users. Neither the file nor a directory may be writable by its group
// or by other users, except for directories with the sticky bit. No other user can therefore change the file to which
// the path refers.
func ReadTrusted(path string, maxSize int64) ([]byte, error) {
	target, err := resolveTrusted(path)
	if err != nil {
		return nil, err
	}
	f, info, err := Open(target)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := checkTrusted(target, info); err != nil {
		return nil, err
	}
	return readAll(f, maxSize)
}

// resolveTrusted returns the path without symbolic links. It returns an error if another user can change or replace a
// component.
func resolveTrusted(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	const separator = string(filepath.Separator)
	at, rest, links := separator, components(path), 0
	for {
		info, err := os.Lstat(at)
		if err != nil {
			return "", err
		}
		if err := checkTrusted(at, info); err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			if links++; links > maxLinks {
				return "", fmt.Errorf("%s has too many symbolic links", path)
			}
			target, err := os.Readlink(at)
			if err != nil {
				return "", err
			}
			rest = slices.Concat(components(target), rest)
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = separator
			}
			continue
		}
		if len(rest) == 0 {
			return at, nil
		}
		at, rest = filepath.Join(at, rest[0]), rest[1:]
	}
}

// components splits a path at its separators.
func components(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// checkTrusted returns an error if a user other than root and this process's user can change the file, or add entries
// to the directory.
func checkTrusted(path string, info fs.FileInfo) error {
	const remedy = "make root its owner, and remove write permission for its group and others (chown root, chmod go-w)"
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	if stat.Uid != 0 && int(stat.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d, who can change it: %s", path, stat.Uid, remedy)
	}
	isSticky := info.IsDir() && info.Mode()&fs.ModeSticky != 0
	if info.Mode()&fs.ModeSymlink == 0 && info.Mode().Perm()&0o022 != 0 && !isSticky {
		return fmt.Errorf("%s is writable by its group or others (mode %04o): %s", path, info.Mode().Perm(), remedy)
	}
	return nil
}
