package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// finding is the files and directories that are below the configured paths.
type finding struct {
	files []foundFile
	dirs  []foundDir
	// unreadable are the paths below which nothing is known: what they last held is kept. err is the first's reason.
	unreadable []string
	err        error
	links      []string // that are in the directories read
	// tangled: a file or directory may be known here by several names, or what a name leads to may be changed elsewhere.
	tangled bool
}

type foundDir struct {
	path string
	info fs.FileInfo
}

type foundFile struct {
	path string
	info fs.FileInfo
	// target is the file that a link leads to, whose changes are told of in its own directory; empty for other files.
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

// maxDepth bounds how deep directories are read.
const maxDepth = 32

func find(paths []string) *finding {
	f := &finding{}
	for _, root := range paths {
		root = filepath.Clean(root)
		info, err := os.Stat(root)
		switch {
		case err != nil:
			f.fail(root, err)
		case info.IsDir():
			f.walk(root, []fs.FileInfo{info})
		default:
			f.tangled = true
			f.files = append(f.files, newFoundFile(root, info))
		}
	}
	return f
}

func (f *finding) fail(path string, err error) {
	f.unreadable = append(f.unreadable, path)
	if f.err == nil {
		f.err = err
	}
}

// walk reads a directory. around is its own information and that of those around it, the root's first: a directory that
// links to one of them is not read again.
func (f *finding) walk(dir string, around []fs.FileInfo) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if len(around) == 1 || !errors.Is(err, fs.ErrNotExist) {
			f.fail(dir, err)
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
		look := entry.Info // one look is enough where there is no link to follow
		if link {
			f.tangled, f.links = true, append(f.links, path)
			look = func() (fs.FileInfo, error) { return os.Stat(path) }
		}
		info, err := look()
		switch {
		case err != nil:
			// Gone since, or a link to nowhere: the same as not there. A file that may not be read shows when it is.
		case info.IsDir():
			if !contained(around, info) && len(around) < maxDepth {
				f.walk(path, append(slices.Clip(around), info))
			}
		case info.Mode().IsRegular() && isConfigFile(entry.Name()):
			file := foundFile{path: path, info: info}
			if link {
				file = newFoundFile(path, info)
			}
			f.files = append(f.files, file)
			f.tangled = f.tangled || hardLinked(info)
		}
	}
}

func contained(around []fs.FileInfo, dir fs.FileInfo) bool {
	return slices.ContainsFunc(around, func(other fs.FileInfo) bool { return os.SameFile(other, dir) })
}

func isConfigFile(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// isEditorFile says whether a name is that of something hidden, or of what editors leave beside a file.
func isEditorFile(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasSuffix(name, "~") || strings.HasPrefix(name, "#") ||
		strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".tmp")
}
