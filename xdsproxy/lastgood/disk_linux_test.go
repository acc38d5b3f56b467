package lastgood

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestFullDiskStopsSavingUntilNextStream(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, fmt.Sprintf("size=%d", 1<<20)); err != nil {
		t.Skipf("mounting needs privileges: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(disk, unix.MNT_DETACH) })
	dir := filepath.Join(disk, "state")
	s := openStore(t, Config{Dirs: []string{dir}})
	r := s.Begin(testIdentity)
	accept(t, r, "1", "a=A")
	complete(r)
	expectStored(t, s, "a=1:A")
	accept(t, r, "2", "big="+strings.Repeat("x", 2<<20))
	expectStored(t, s, "a=1:A")
	if st := s.Status(); st.Failures != 1 || !strings.Contains(st.Reason, "no space left") || r.IsActive() {
		t.Errorf("status: %+v", st)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	r = s.Begin(testIdentity)
	accept(t, r, "3", "b=B")
	complete(r)
	expectStored(t, s, "a=1:A b=3:B")
	if st := s.Status(); st.Reason != "" {
		t.Errorf("status: %+v", st)
	}
}
