package testenv

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// RemoveCgroups takes away a cgroup, of every hierarchy that has it, with all below it: what a container runtime leaves of
// containers that were killed with it. Their processes are about to end, and are waited for up to patience in all.
func RemoveCgroups(cgroup string, patience time.Duration) {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
	if _, err := os.Stat("/sys/fs/cgroup/" + cgroup); err == nil {
		roots = append(roots, "/sys/fs/cgroup/"+cgroup)
	}
	deadline := time.Now().Add(patience)
	for _, root := range roots {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			for errors.Is(syscall.Rmdir(dir), syscall.EBUSY) && time.Now().Before(deadline) {
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
}
