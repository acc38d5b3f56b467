package mesh

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnsearchablePATHDirectoryHasNoProgram(t *testing.T) {
	t.Parallel()
	closed, plain := filepath.Join(t.TempDir(), "closed"), t.TempDir()
	if err := os.Mkdir(closed, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(plain, "program"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // permanently: the thread cannot regain its capabilities
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &make([]unix.CapUserData, 2)[0]); err != nil {
		t.Fatal(err)
	}
	var absent noProgramError
	if _, err := findProgram(command{Args: []string{"program"}, Env: []string{"PATH=" + closed}}); !errors.As(err, &absent) {
		t.Errorf("in a directory that may not be searched: %v", err)
	}
	if _, err := findProgram(command{Args: []string{"program"}, Env: []string{"PATH=" + closed + ":" + plain}}); errors.As(err, &absent) || !strings.Contains(err.Error(), "not executable") {
		t.Errorf("a file that is there and may not be run: %v", err)
	}
}
