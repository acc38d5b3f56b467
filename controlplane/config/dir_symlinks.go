package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks limits the number of links followed for one path, as operating systems do.
const maxLinks = 40

// symlinkComponents returns the names that decide where a path leads: the links in it and the first missing name. None
// of them is below a link. If one of them is replaced, everything below the path changes without an event there.
func symlinkComponents(path string) (names []string) {
	path = absolutePath(path)
	at := filepath.VolumeName(path) + string(filepath.Separator)
	rest := splitPath(path)
	for followed := 0; len(rest) > 0 && followed <= maxLinks; {
		name := filepath.Join(at, rest[0])
		rest = rest[1:]
		info, err := os.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return append(names, name)
		case err != nil:
			return names
		case info.Mode()&fs.ModeSymlink == 0:
			at = name
			continue
		}
		names = append(names, name)
		followed++
		target, err := os.Readlink(name)
		if err != nil {
			return names
		}
		if filepath.IsAbs(target) {
			at = filepath.VolumeName(target) + string(filepath.Separator)
		}
		rest = append(splitPath(target), rest...)
	}
	return names
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) })
}

// watchLinks watches the targets of the links that are read, and the path components that decide where these links and
// the configured paths lead. unwatched reports whether a part was not watched before.
func (f *dirWatcher) watchLinks(found *dirListing) (news bool) {
	f.linkTargets = map[string]string{}
	w := linkWatcher{dirWatcher: f, watched: f.watchedDirs(), dirNames: f.watchedInodes()}
	for _, root := range f.store.cfg.Paths {
		w.watchComponents(root)
	}
	seen := map[string]bool{}
	for _, link := range found.links {
		// For links to files of one directory, the components of one target are enough.
		target, err := os.Readlink(link)
		if err != nil {
			continue
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(link), target)
		}
		if _, err := os.Stat(link); err == nil {
			target = filepath.Dir(target)
		}
		if !seen[target] {
			seen[target] = true
			w.watchComponents(target)
		}
	}
	for _, file := range found.files {
		if file.target != "" {
			f.linkTargets[w.watchParent(file.target)] = file.path
		}
	}
	return w.unwatched
}

// linkWatcher adds watches. It watches each directory under one name only, because events use that name.
type linkWatcher struct {
	*dirWatcher
	watched   map[string]bool
	dirNames  map[[2]uint64]string
	unwatched bool
}

func (w *linkWatcher) watchComponents(path string) {
	for _, name := range symlinkComponents(path) {
		eventName := w.watchParent(name)
		w.linkTargets[eventName] = eventName
	}
}

// watchParent watches the directory of a file. It returns the file's name as events will report it.
func (w *linkWatcher) watchParent(name string) (eventName string) {
	dir := filepath.Dir(name)
	info, err := os.Stat(dir)
	if err != nil {
		return name
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		if known := w.dirNames[inode(stat)]; known != "" {
			return filepath.Join(known, filepath.Base(name))
		}
		w.dirNames[inode(stat)] = dir
	}
	w.unwatched = w.unwatched || !w.watched[dir]
	_ = w.watcher.Add(dir) // on failure, the periodic scan finds changes
	return name
}

// watchedInodes maps the inodes of the watched directories and of the parents of the configured paths to their names.
func (f *dirWatcher) watchedInodes() map[[2]uint64]string {
	names := make(map[[2]uint64]string, len(f.dirs))
	note := func(name string, info fs.FileInfo) {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			names[inode(stat)] = name
		}
	}
	for _, root := range f.store.cfg.Paths {
		parent := filepath.Dir(filepath.Clean(root))
		if info, err := os.Stat(parent); err == nil {
			note(parent, info)
		}
	}
	for name, info := range f.dirs {
		note(name, info)
	}
	return names
}
