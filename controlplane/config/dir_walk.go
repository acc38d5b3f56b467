package config

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
	// unreadable lists paths whose content is unknown. Documents below them stay in force. err is the error of the
	// first one.
	unreadable []string
	err        error
	links      []string // links in the directories that were read
	// hasLinks is set if a file or directory may have several names, or if the target of a link may change elsewhere.
	hasLinks bool
}

type foundDir struct {
	path string
	info fs.FileInfo
}

type foundFile struct {
	path string
	info fs.FileInfo
	// target is the file that a link leads to; events for it occur in the target's directory. Empty for other files.
	target string
}

func newFoundFile(path string, info fs.FileInfo) foundFile {
	f := foundFile{path: path, info: info}
	if own, err := os.Lstat(path); err == nil && own.Mode()&fs.ModeSymlink != 0 {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			f.target = target
		}
	}
	return f
}

// maxDepth limits how deep directories are read.
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
			f.hasLinks = true
			f.files = append(f.files, newFoundFile(root, info))
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

// readDir reads a directory. parents holds the information of the directory and of those that contain it, the root
// first. A link to one of them is not followed.
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
		link := entry.Type()&fs.ModeSymlink != 0
		look := entry.Info // one stat is enough without a link
		if link {
			f.hasLinks, f.links = true, append(f.links, path)
			look = func() (fs.FileInfo, error) { return os.Stat(path) }
		}
		info, err := look()
		switch {
		case err != nil:
			// The entry was removed meanwhile, or is a dangling link. An unreadable file is reported when it is read.
		case info.IsDir():
			if !containsDir(around, info) && len(around) < maxDepth {
				f.readDir(path, append(slices.Clip(around), info))
			}
		case info.Mode().IsRegular() && isConfigFile(entry.Name()):
			file := foundFile{path: path, info: info}
			if link {
				file = newFoundFile(path, info)
			}
			f.files = append(f.files, file)
			f.hasLinks = f.hasLinks || hardLinked(info)
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

// isEditorFile reports whether a name is hidden or belongs to a temporary file of an editor.
func isEditorFile(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") ||
		strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".tmp")
}
