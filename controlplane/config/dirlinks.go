package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks bounds the links that are followed to one path, as systems do.
const maxLinks = 40

// waysTo are the names that decide where a path leads: the links on the way to it, and the first name that is missing. None
// is itself below a link. Whoever replaces one of them replaces all that is below the path, and nothing there tells of it.
func waysTo(path string) (names []string) {
	path = absolute(path)
	at := filepath.VolumeName(path) + string(filepath.Separator)
	rest := parts(path)
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
		rest = append(parts(target), rest...)
	}
	return names
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r < 0x80 && os.IsPathSeparator(uint8(r)) })
}

// watchLinks watches what the links lead to that are read, and what decides where they and the configured paths lead. It
// says whether any of it was not watched.
func (f *follower) watchLinks(found *finding) (news bool) {
	f.linked = map[string]string{}
	w := linkWatch{follower: f, watched: f.watched(), names: f.watchedNames()}
	for _, root := range f.store.cfg.Paths {
		w.ways(root)
	}
	seen := map[string]bool{}
	for _, link := range found.links {
		// Of links that lead to files of one directory, one tells how all get there.
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
			w.ways(target)
		}
	}
	for _, file := range found.files {
		if file.target != "" {
			f.linked[w.add(file.target)] = file.path
		}
	}
	return w.news
}

// linkWatch adds to what is watched. One directory is watched by one name, which is how the system tells of it.
type linkWatch struct {
	*follower
	watched map[string]bool
	names   map[[2]uint64]string
	news    bool
}

func (w *linkWatch) ways(path string) {
	for _, name := range waysTo(path) {
		told := w.add(name)
		w.linked[told] = told
	}
}

// add watches the directory of a name, and gives the name by which it will be told of.
func (w *linkWatch) add(name string) (told string) {
	dir := filepath.Dir(name)
	info, err := os.Stat(dir)
	if err != nil {
		return name
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		if known := w.names[inode(stat)]; known != "" {
			return filepath.Join(known, filepath.Base(name))
		}
		w.names[inode(stat)] = dir
	}
	w.news = w.news || !w.watched[dir]
	_ = w.watcher.Add(dir) // else the regular look at all files finds what changes
	return name
}

// watchedNames are the directories that are watched for what is in them, and those around the configured paths.
func (f *follower) watchedNames() map[[2]uint64]string {
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
