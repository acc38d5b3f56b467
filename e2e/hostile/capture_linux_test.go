package hostile

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// captureAttacks are attempts of applications of a captured local mesh to leave the place that they have in it.
var captureAttacks = []attack{
	{
		name: "an application of a captured mesh leaves its redirection", position: application,
		limit: "the kernel refuses it", service: "the application binds low ports, and changes owners and users",
		run: leaveCapturedMesh,
	},
}

// attackerResults is the variable by which this test's program is the application, and where it writes what it could do.
const attackerResults = "PILOTFISH_TEST_ATTACKER_RESULTS"

// forbidden are the attempts that have to fail.
var forbidden = map[string]func() error{
	"delete the redirection rules": func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.FlushRuleset()
		return conn.Flush()
	},
	"take an address": func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		address, err := netlink.ParseAddr("10.77.200.1/16")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, address)
	},
	"send packets past the rules": func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	},
	"enter the machine's network": func() error { return enterNetworkOf(1) },
	"make a mount namespace":      func() error { return unix.Unshare(unix.CLONE_NEWNS) },
	"trace the machine's init":    func() error { return unix.PtraceSeize(1) },
}

func enterNetworkOf(pid int) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
}

// required are what ordinary programs of root do.
var required = map[string]func() error{
	"bind port 80": func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		return unix.Bind(fd, &unix.SockaddrInet4{Port: 80})
	},
	"change a file's owner": func() error {
		f, err := os.CreateTemp("", "owner")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(f.Name()) }()
		return errors.Join(f.Chown(4242, 4242), f.Close())
	},
	"run a program as another user": func() error {
		cmd := exec.Command("/bin/true")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
		return cmd.Run()
	},
	"send a ping": func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	},
}

// TestActAsCapturedApplication is the application of leaveCapturedMesh, and nothing without the variable.
func TestActAsCapturedApplication(t *testing.T) {
	file := os.Getenv(attackerResults)
	if file == "" {
		return
	}
	results := map[string]string{}
	for _, attempts := range []map[string]func() error{required, forbidden} {
		for name, attempt := range attempts {
			results[name] = fmt.Sprint(attemptOnThread(attempt))
		}
	}
	text, err := json.Marshal(results)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

// attemptOnThread runs an attempt on a thread that ends with it.
func attemptOnThread(attempt func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- attempt()
	}()
	return <-result
}

func leaveCapturedMesh(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, for whom applications are captured without a user namespace")
	}
	dir, err := os.MkdirTemp("", "capture") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := func(name string) string { return filepath.Join(dir, name) }
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	topology := fmt.Sprintf(`apiVersion: pilotfish.dev/v1alpha1
kind: Mesh
metadata: {name: capture-attack}
spec:
  workloads:
  - name: app
    command: [sh, -c, "%s -test.run=TestActAsCapturedApplication; exec sleep 600"]
    env: {%s: %s}
`, self, attackerResults, file("by-up"))
	if err := os.WriteFile(file("mesh.yaml"), []byte(topology), 0o600); err != nil {
		t.Fatal(err)
	}
	out := &testenv.Buffer{}
	up := exec.Command(testenv.Bin(t, "pilotfish"), "up", "-f", file("mesh.yaml"), "--capture", "--runtime-dir", file("run"))
	up.Env = append(os.Environ(), "ENVOY_PATH="+testenv.Envoy(t), "XDG_STATE_HOME="+file("state"))
	up.Stdout, up.Stderr = out, out
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = up.Process.Signal(syscall.SIGTERM)
		_ = up.Wait()
		if t.Failed() {
			t.Logf("pilotfish up:\n%s", out)
		}
	})
	checkAttempts(t, "the application", file("by-up"), out)

	command := exec.CommandContext(t.Context(), testenv.Bin(t, "pilotfish"), "exec", "--runtime-dir", file("run"), "app", "--",
		self, "-test.run=TestActAsCapturedApplication")
	command.Env = append(os.Environ(), attackerResults+"="+file("by-exec"))
	command.WaitDelay = time.Second
	if text, err := command.CombinedOutput(); err != nil {
		t.Fatalf("pilotfish exec: %v: %s", err, text)
	}
	checkAttempts(t, "a command of pilotfish exec", file("by-exec"), out)
}

// checkAttempts compares what an application could do with what it may.
func checkAttempts(t *testing.T, actor, file string, out *testenv.Buffer) {
	t.Helper()
	results := map[string]string{}
	testenv.Eventually(t, actor+" has made its attempts", func() error {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("%w; up wrote: %s", err, out)
		}
		return json.Unmarshal(text, &results)
	})
	for name := range required {
		if results[name] != "<nil>" {
			t.Errorf("%s cannot %s: %s", actor, name, results[name])
		}
	}
	for name := range forbidden {
		if results[name] == "<nil>" {
			t.Errorf("%s can %s", actor, name)
		}
	}
}
