package sds

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// mostLinks is how many symbolic links a path may go through, as in the kernel.
const mostLinks = 40

// spot is a name in a directory, where something may happen to a file.
type spot struct{ dir, name string }

func spotOf(path string) spot { return spot{filepath.Dir(path), filepath.Base(path)} }

// spotsOf are the places that decide what a path leads to: the file itself, each symbolic link on the way to it, and
// where something is missing, that.
func spotsOf(path string) []spot {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	var spots []spot
	dir, links := string(filepath.Separator), 0
	names := split(path)
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
			return append(spots, spot{dir, name})
		case info.Mode()&fs.ModeSymlink == 0:
			dir = here
			continue
		}
		spots = append(spots, spot{dir, name})
		target, err := os.Readlink(here)
		if links++; err != nil || links > mostLinks {
			return spots
		}
		if filepath.IsAbs(target) {
			dir = string(filepath.Separator)
		}
		names = append(split(target), names...)
	}
	return spots
}

func split(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}
