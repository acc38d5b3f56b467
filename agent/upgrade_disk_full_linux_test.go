package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// On a full disk, an upgrade succeeds if it does not have to write a file. Otherwise it fails, and the running Envoy
// continues to serve.
func TestUpgradeOnFullDiskSucceedsOrChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.151.4.1")
	s.args = append(s.args, "--restart")
	s.cp.start(t)
	etc := filepath.Join(s.dir, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", etc, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("cannot mount a file system: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(etc, syscall.MNT_DETACH) })
	r := s.start(t)
	r.waitReady()
	fillDisk(t, filepath.Join(etc, "fill"))

	same := r.upgrade(t, "--envoy-path", testenv.Envoy(t), "--keep", "1s", "--wait")
	if code := same.waitExit(); code != 0 || !strings.Contains(same.out.String(), HotRestart) {
		t.Errorf("to the same version by hot restart: %d: %s", code, same.out)
	}
	r.waitReady()
	pid := r.envoy()
	apart := r.upgrade(t, "--envoy-path", testenv.EnvoyOf(t, testenv.OldEnvoyVersion), "--way", HandOver, "--wait")
	if code := apart.waitExit(); code == 0 || !strings.Contains(apart.out.String(), "no space left on device") {
		t.Errorf("by handing over: %d: %s", code, apart.out)
	}
	r.waitReady()
	if status := r.waitState(stateRunning); status.PID != pid {
		t.Errorf("another Envoy runs: %+v", status)
	}
	if left, _ := filepath.Glob(filepath.Join(etc, "istio/proxy/*.new")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	r.signal(syscall.SIGTERM)
	r.checkExit(0)
}

// fillDisk writes until the disk is full.
func fillDisk(t *testing.T, file string) {
	t.Helper()
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
}
