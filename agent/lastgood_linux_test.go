package agent

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// mountForReading mounts the agent's storage directory on a read-only file system.
func mountForReading(t *testing.T, s *agentSetup) {
	dir := filepath.Join(s.dir, "etc/istio/proxy/last-good")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_RDONLY, "size=64k"); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
}
