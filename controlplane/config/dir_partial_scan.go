package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// symlinkFreeTree is a set of directories without links, in which each file has one name. A file event therefore
// concerns only the named file. Links, the replacement of a volume, and added or removed directories require a full
// scan.
type symlinkFreeTree struct {
	dirs map[string]fs.FileInfo
}

// newSymlinkFreeTree returns the listing as a symlinkFreeTree. It returns nil if the listing has links or if the
// watched directories differ from the listed ones.
func (f *dirListing) newSymlinkFreeTree(watched map[string]fs.FileInfo) *symlinkFreeTree {
	if !f.isSymlinkFree() || len(watched) != len(f.dirs) {
		return nil
	}
	for _, dir := range f.dirs {
		if known := watched[dir.path]; known == nil || !os.SameFile(known, dir.info) {
			return nil
		}
	}
	return &symlinkFreeTree{dirs: watched}
}

// isSymlinkFree reports whether the listing has no links and no directory with two names.
func (f *dirListing) isSymlinkFree() bool {
	if f.hasLinks || f.err != nil {
		return false
	}
	// The inode number identifies a directory, so that a directory with two names is found in linear time.
	seen := make(map[[2]uint64]bool, len(f.dirs))
	for _, dir := range f.dirs {
		stat, ok := dir.info.Sys().(*syscall.Stat_t)
		if !ok || seen[inode(stat)] {
			return false
		}
		seen[inode(stat)] = true
	}
	return true
}

func inode(stat *syscall.Stat_t) [2]uint64 { return [2]uint64{uint64(stat.Dev), uint64(stat.Ino)} }

func hardLinked(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return !ok || stat.Nlink > 1
}

// checkPaths sorts the paths into files to read and files that do not exist (any more). ok is false if the events may
// concern other names too.
func (t *symlinkFreeTree) checkPaths(paths map[string]bool) (there []foundFile, gone []string, ok bool) {
	same := map[string]bool{}
	for path := range paths {
		dir := filepath.Dir(path)
		if !same[dir] && !t.isUnchangedDir(dir) {
			return nil, nil, false
		}
		same[dir] = true
		info, ok := t.statFile(path)
		switch {
		case !ok:
			return nil, nil, false
		case info == nil:
			gone = append(gone, path)
		default:
			there = append(there, foundFile{path: path, info: info})
		}
	}
	return there, gone, true
}

// isUnchangedDir reports whether dir belongs to the tree and was not replaced.
func (t *symlinkFreeTree) isUnchangedDir(dir string) bool {
	known := t.dirs[dir]
	if known == nil {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && os.SameFile(known, info)
}

// statFile returns the information of the file at path. info is nil if there is no file to read. ok is false if a full
// scan is needed.
func (t *symlinkFreeTree) statFile(path string) (info fs.FileInfo, ok bool) {
	if t.dirs[path] != nil || isEditorFile(filepath.Base(path)) {
		return nil, false
	}
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, true
	case err != nil || info.IsDir() || info.Mode()&fs.ModeSymlink != 0:
		return nil, false
	case !info.Mode().IsRegular() || !isConfigFile(filepath.Base(path)):
		return nil, true
	}
	return info, !hardLinked(info)
}

// comparePaths orders the paths of a symlinkFreeTree as a full scan does: by configured path, then component by
// component.
func (s *DirStore) comparePaths(a, b string) int {
	if d := s.rootIndex(a) - s.rootIndex(b); d != 0 {
		return d
	}
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if os.IsPathSeparator(a[i]) { // a's component is a prefix of b's
			return -1
		}
		if os.IsPathSeparator(b[i]) {
			return 1
		}
		return int(a[i]) - int(b[i])
	}
	return len(a) - len(b)
}

func (s *DirStore) rootIndex(path string) int {
	if len(s.cfg.Paths) == 1 {
		return 0
	}
	for i, root := range s.cfg.Paths {
		if isWithin(filepath.Clean(root), path) {
			return i
		}
	}
	return len(s.cfg.Paths)
}
