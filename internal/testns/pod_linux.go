package testns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// unifiedRoot is the mount point of the cgroup v2 tree on machines that also have cgroup v1.
const unifiedRoot = "/sys/fs/cgroup/unified"

// JoinPod moves a process into a cgroup whose name is like that of a pod's cgroup, until the test ends. If that is not
// possible, the test is skipped.
func JoinPod(t testing.TB, pid int, uid string) {
	t.Helper()
	root := unifiedRoot
	if _, err := os.Stat(root); err != nil {
		root = filepath.Dir(unifiedRoot)
	}
	group := filepath.Join(root, fmt.Sprintf("kubepods-test-%d", os.Getpid()), "pod"+uid)
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Skipf("creating a cgroup: %v", err)
	}
	text := []byte(strconv.Itoa(pid))
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), text, 0) // fails if the process has exited
		_ = os.Remove(group)
		_ = os.Remove(filepath.Dir(group))
	})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), text, 0); err != nil {
		t.Skipf("joining a cgroup: %v", err)
	}
}
