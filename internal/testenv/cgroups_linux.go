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

// RemoveCgroups removes a cgroup from every hierarchy, with all cgroups below it: a container runtime leaves them
// behind when its containers are killed with it. It waits up to timeout for their processes to end.
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
