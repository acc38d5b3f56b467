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

// TestDiskThatFillsInTheMiddleOfALargeResponse is on a file system that has no room for the response: Envoy gets it all the
// same, the disk keeps what it had, memory takes over, and gives it to the disk once there is room.
func TestDiskThatFillsInTheMiddleOfALargeResponse(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", flowing/2)); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	config := Config{LastGood: LastGood{Dirs: []string{filepath.Join(disk, "kept")}, MaxMemory: 16 << 20, retry: 10 * time.Millisecond}}
	l, s, r, stop, envoy := begun(t, config)
	before := time.Now()
	response := large(t, clusterType, clusterType, flowing)
	s.says(response)
	if got := envoy.take(clusterType, ""); len(got.Resources) != flowing/1000 {
		t.Errorf("Envoy got %d clusters", len(got.Resources))
	}
	again := l.stream() // everything is asked for anew
	for range 2 {
		switch asked := again.next(delta); asked.typeURL {
		case clusterType:
			again.says(response)
			envoy.take(clusterType, "")
		case listenerType:
			again.says(one(t, listenerType, "n3", "in", "2"))
			envoy.take(listenerType, "")
		}
	}
	kept(t, r, before)
	if k := r.Status().LastGood.Kept; !k.InMemory || k.Failures == 0 || !strings.Contains(k.NoDisk, "no space left") {
		t.Errorf("%+v", k)
	}
	stop()
	afterwards(t, config, map[string]string{"Cluster a": "1", "Listener in": "1"})
	if files, err := os.ReadDir(config.LastGood.Dirs[0]); err != nil || len(files) > 2 {
		t.Errorf("%v, %v", files, err)
	}
}
