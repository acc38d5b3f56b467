package testns

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// unified is where the one hierarchy of control groups is mounted.
const unified = "/sys/fs/cgroup/unified"

// JoinPod moves a process into a cgroup with the name that a kubelet gives to a pod's cgroup, until the test ends. The
// test is skipped where that is not possible.
func JoinPod(t testing.TB, pid int, uid string) {
	t.Helper()
	root := unified
	if _, err := os.Stat(root); err != nil {
		root = filepath.Dir(unified)
	}
	group := filepath.Join(root, fmt.Sprintf("kubepods-test-%d", os.Getpid()), "pod"+uid)
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Skipf("control groups cannot be made here: %v", err)
	}
	text := []byte(strconv.Itoa(pid))
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(root, "cgroup.procs"), text, 0) // unless it has ended
		_ = os.Remove(group)
		_ = os.Remove(filepath.Dir(group))
	})
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), text, 0); err != nil {
		t.Skipf("control groups cannot be used here: %v", err)
	}
}
