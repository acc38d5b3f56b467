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

// RemoveCgroups removes a cgroup and all cgroups below it from every hierarchy. A container runtime that was killed
// does not remove them. It waits up to timeout until their processes have exited.
func RemoveCgroups(cgroup string, timeout time.Duration) {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*/" + cgroup)
	if _, err := os.Stat("/sys/fs/cgroup/" + cgroup); err == nil {
		roots = append(roots, "/sys/fs/cgroup/"+cgroup)
	}
	deadline := time.Now().Add(timeout)
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
