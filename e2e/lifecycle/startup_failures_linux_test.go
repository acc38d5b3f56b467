package lifecycle

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runToEnd runs an agent that exits by itself, and returns its exit code and output.
func runToEnd(t *testing.T, p *pod) (code int, output string) {
	t.Helper()
	p.start(t)
	code = p.wait(t, 20*time.Second)
	return code, p.output.String()
}

func TestStatusPortInUseIsReportedWithItsOwner(t *testing.T) {
	p := newPod(t, startPlane(t), "shop")
	l, err := net.Listen("tcp", p.proxy+":15020")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, output := runToEnd(t, p)
	if code == 0 {
		t.Error("the agent ended with code 0")
	}
	for _, want := range []string{p.proxy + ":15020", strconv.Itoa(os.Getpid())} {
		if !strings.Contains(output, want) {
			t.Errorf("it does not say %q:\n%s", want, output)
		}
	}
}

// readOnly makes the pod's directory read-only but for some of its folders, in a mount namespace of the agent's own, as
// readOnlyRootFilesystem does with volumes mounted into it.
func (p *pod) readOnly(t *testing.T, writable ...string) {
	t.Helper()
	script := "set -e; mount --make-rprivate /; mount --bind . .; cd \"$PWD\"; "
	for _, path := range writable {
		if err := os.MkdirAll(filepath.Join(p.dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
		script += "mount -t tmpfs tmpfs " + path + "; "
	}
	script += "mount -o remount,bind,ro \"$PWD\"; exec \"$@\""
	p.wrap = func(args []string) ([]string, *syscall.SysProcAttr) {
		attr := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if os.Getuid() != 0 {
			attr.Cloneflags |= syscall.CLONE_NEWUSER
			attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		}
		return append([]string{"/bin/sh", "-c", script, "sh"}, args...), attr
	}
}

func TestReadOnlyFileSystemIsReportedWithRemedy(t *testing.T) {
	p := newPod(t, startPlane(t), "shop")
	p.readOnly(t)
	code, output := runToEnd(t, p)
	if code == 0 || !strings.Contains(output, "read-only file system") || !strings.Contains(output, "configPath") {
		t.Errorf("exit code %d, and it said:\n%s", code, output)
	}
}

func TestAReadOnlyPodWithTheMeshsVolumesWorks(t *testing.T) {
	p := newPod(t, startPlane(t), "shop").set(map[string]string{"HOME": "/nonexistent", "XDG_CACHE_HOME": ""})
	p.readOnly(t, "etc/istio/proxy", "var/run/secrets/workload-spiffe-uds")
	p.start(t).waitReady(t)
	p.signal(t, syscall.SIGTERM)
	if code := p.wait(t, 20*time.Second); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
