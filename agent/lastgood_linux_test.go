package agent

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// mountForReading has the agent's directory for what it keeps on a file system that cannot be written to.
func mountForReading(t *testing.T, s *setup) {
	dir := filepath.Join(s.dir, "etc/istio/proxy/last-good")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "size=64k"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}
