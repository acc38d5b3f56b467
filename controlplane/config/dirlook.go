package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// plainTree is directories in which each file has one name and is what stands there: what the system tells of a name
// concerns this name alone. All else (links, the swap of a volume, directories that come and go) takes a look at
// everything.
type plainTree struct {
	dirs map[string]fs.FileInfo
}

// tree is what was found as a plainTree; nil when it is none, or when other directories are watched than were found.
func (f *finding) tree(watched map[string]fs.FileInfo) *plainTree {
	if !f.plain() || len(watched) != len(f.dirs) {
		return nil
	}
	for _, dir := range f.dirs {
		if known := watched[dir.path]; known == nil || !os.SameFile(known, dir.info) {
			return nil
		}
	}
	return &plainTree{dirs: watched}
}

// plain says whether what was found is a plainTree: no links, and no directory by two names.
func (f *finding) plain() bool {
	if f.tangled || f.err != nil {
		return false
	}
	// Directories come by a stable number where the system has one, so that one by two names is found without comparing all.
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

// look says which of the paths are files to read, and which are no such files (any more). It says no where what happened
// there may concern more than these names.
func (t *plainTree) look(paths map[string]bool) (there []foundFile, gone []string, ok bool) {
	same := map[string]bool{}
	for path := range paths {
		dir := filepath.Dir(path)
		if !same[dir] && !t.stands(dir) {
			return nil, nil, false
		}
		same[dir] = true
		info, ok := t.file(path)
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

// stands says whether a directory is one of the tree's, and still the same.
func (t *plainTree) stands(dir string) bool {
	known := t.dirs[dir]
	if known == nil {
		return false
	}
	info, err := os.Stat(dir)
	return err == nil && os.SameFile(known, info)
}

// file looks at one path; nil is that there is no file to read.
func (t *plainTree) file(path string) (info fs.FileInfo, ok bool) {
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

// inOrder compares two paths of a plainTree as finding them all does: by the configured path that each is below, and then
// name by name.
func (s *DirStore) inOrder(a, b string) int {
	if d := s.rootOf(a) - s.rootOf(b); d != 0 {
		return d
	}
	for i := range min(len(a), len(b)) {
		if a[i] == b[i] {
			continue
		}
		if os.IsPathSeparator(a[i]) { // the shorter name
			return -1
		}
		if os.IsPathSeparator(b[i]) {
			return 1
		}
		return int(a[i]) - int(b[i])
	}
	return len(a) - len(b)
}

func (s *DirStore) rootOf(path string) int {
	if len(s.cfg.Paths) == 1 {
		return 0
	}
	for i, root := range s.cfg.Paths {
		if within(filepath.Clean(root), path) {
			return i
		}
	}
	return len(s.cfg.Paths)
}
