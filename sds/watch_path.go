package sds

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is the maximum number of symbolic links in a path, as in the kernel.
const maxLinks = 40

// watchPoint is a name in a watched directory. Events of this name may change which file a path resolves to.
type watchPoint struct{ dir, name string }

func newWatchPoint(path string) watchPoint {
	return watchPoint{filepath.Dir(path), filepath.Base(path)}
}

// findWatchPoints returns the watch points that determine to which file a path resolves: the file itself, each symbolic
// link in the path, and the first missing component.
func findWatchPoints(path string) []watchPoint {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var spots []watchPoint
	dir, links := string(filepath.Separator), 0
	names := splitPath(path)
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if name == "." || name == ".." {
			if name == ".." {
				dir = filepath.Dir(dir)
			}
			continue
		}
		here := filepath.Join(dir, name)
		info, err := os.Lstat(here)
		switch {
		case err != nil || len(names) == 0 && info.Mode()&fs.ModeSymlink == 0:
			return append(spots, watchPoint{dir, name})
		case info.Mode()&fs.ModeSymlink == 0:
			dir = here
			continue
		}
		spots = append(spots, watchPoint{dir, name})
		target, err := os.Readlink(here)
		if links++; err != nil || links > maxLinks {
			return spots
		}
		if filepath.IsAbs(target) {
			dir = string(filepath.Separator)
		}
		names = append(splitPath(target), names...)
	}
	return spots
}

func splitPath(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}
