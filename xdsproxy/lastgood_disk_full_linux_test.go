package xdsproxy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDiskFullDuringLargeResponse uses a file system that is too small for the response. Envoy receives the response,
// and the disk retains its content. The relay stores in memory, and on the disk when there is space again.
func TestDiskFullDuringLargeResponse(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", chunkedSize/2)); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	config := Config{LastGood: LastGood{Dirs: []string{filepath.Join(disk, "kept")}, MaxMemory: 16 << 20, retry: 10 * time.Millisecond}}
	l, s, r, stop, envoy := startRecordedEnvoy(t, config)
	before := time.Now()
	response := newLargeResponse(t, clusterType, clusterType, chunkedSize)
	s.send(response)
	if got := envoy.accept(clusterType, ""); len(got.Resources) != chunkedSize/1000 {
		t.Errorf("Envoy received %d clusters", len(got.Resources))
	}
	again := l.acceptStream() // all resources are requested again
	for range 2 {
		switch requested := again.next(delta); requested.typeURL {
		case clusterType:
			again.send(response)
			envoy.accept(clusterType, "")
		case listenerType:
			again.send(newResource(t, listenerType, "n3", "in", "2"))
			envoy.accept(listenerType, "")
		}
	}
	waitStored(t, r, before)
	if k := r.Status().LastGood.Storage; !k.InMemory || k.Failures == 0 || !strings.Contains(k.NoDisk, "no space left") {
		t.Errorf("%+v", k)
	}
	stop()
	expectStoredAfterRestart(t, config, map[string]string{"Cluster a": "1", "Listener in": "1"})
	if files, err := os.ReadDir(config.LastGood.Dirs[0]); err != nil || len(files) > 2 {
		t.Errorf("%v, %v", files, err)
	}
}
