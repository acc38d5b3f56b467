package dirstore

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// dirListing lists the files and directories below the configured paths.
type dirListing struct {
	files []foundFile
	dirs  []foundDir
	// unreadable lists paths that cannot be read. Documents below them stay in force. err is the error of the first
	// path.
	unreadable []string
	err        error
}

type foundDir struct {
	path string
	info fs.FileInfo
}

type foundFile struct {
	path string
	info fs.FileInfo
}

// maxDepth limits the depth of the directories that are read.
const maxDepth = 32

func listPaths(paths []string) *dirListing {
	f := &dirListing{}
	for _, root := range paths {
		root = filepath.Clean(root)
		info, err := os.Stat(root)
		switch {
		case err != nil:
			f.addUnreadable(root, err)
		case info.IsDir():
			f.readDir(root, []fs.FileInfo{info})
		default:
			f.files = append(f.files, foundFile{path: root, info: info})
		}
	}
	return f
}

func (f *dirListing) addUnreadable(path string, err error) {
	f.unreadable = append(f.unreadable, path)
	if f.err == nil {
		f.err = err
	}
}

// readDir lists the directory dir and the directories below it. around contains the file information of dir and of all
// directories that contain it, the root first. readDir does not follow links to these directories, which would be
// endless.
func (f *dirListing) readDir(dir string, around []fs.FileInfo) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if len(around) == 1 || !errors.Is(err, fs.ErrNotExist) {
			f.addUnreadable(dir, err)
		}
		return
	}
	f.dirs = append(f.dirs, foundDir{dir, around[len(around)-1]})
	for _, entry := range entries {
		if isEditorFile(entry.Name()) {
			continue
		}
		path := filepath.Join(dir, entry.Name())
		look := entry.Info // one stat is enough without a link
		if entry.Type()&fs.ModeSymlink != 0 {
			look = func() (fs.FileInfo, error) { return os.Stat(path) }
		}
		info, err := look()
		switch {
		case err != nil:
			// The entry was removed meanwhile, or is a dangling link. A file that cannot be read is reported by the
			// scan.
		case info.IsDir():
			if !containsDir(around, info) && len(around) < maxDepth {
				f.readDir(path, append(slices.Clip(around), info))
			}
		case info.Mode().IsRegular() && isConfigFile(entry.Name()):
			f.files = append(f.files, foundFile{path: path, info: info})
		}
	}
}

func containsDir(around []fs.FileInfo, dir fs.FileInfo) bool {
	return slices.ContainsFunc(around, func(other fs.FileInfo) bool { return os.SameFile(other, dir) })
}

func isConfigFile(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// isEditorFile reports whether name is the name of a hidden file or of an editor's temporary file.
func isEditorFile(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") ||
		strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".tmp")
}
