package packages

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const testTimeout = time.Minute

// machine is a root directory with its own mounts, network and processes.
type machine struct {
	t    *testing.T
	pid  string // of its first process, seen from outside
	root string
}

// createRoot mounts an overlay over the machine's root, and starts the loopback interface.
const createRoot = `set -e
mount -t tmpfs none %[1]s
mkdir %[1]s/upper %[1]s/work %[1]s/root %[1]s/shared
mount -t overlay overlay -o lowerdir=/,upperdir=%[1]s/upper,workdir=%[1]s/work %[1]s/root
mount -t proc proc %[1]s/root/proc
mount --rbind /dev %[1]s/root/dev
mount -t tmpfs none %[1]s/root/run
ip link set lo up
`

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root installs packages")
	}
	dir := t.TempDir()
	first := exec.Command("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sleep", "infinity")
	if err := first.Start(); err != nil {
		t.Skipf("no namespaces: %v", err)
	}
	t.Cleanup(func() { _ = first.Process.Kill(); _ = first.Wait() })
	m := &machine{t: t, root: filepath.Join(dir, "root")}
	for end := time.Now().Add(testTimeout); m.pid == "" && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", first.Process.Pid, first.Process.Pid))
		m.pid = strings.TrimSpace(string(children))
	}
	if out, err := m.enter("sh", "-c", fmt.Sprintf(createRoot, dir)).CombinedOutput(); err != nil {
		t.Skipf("no overlay file system for the machine: %v: %s", err, out)
	}
	return m
}

// enter returns a command in the machine's namespaces, but outside its root.
func (m *machine) enter(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", m.pid, "--mount", "--net", "--pid", "--"}, args...)...)
}

// command returns a command on the machine, with only the specified variables.
func (m *machine) command(env []string, args ...string) *exec.Cmd {
	line := append([]string{"chroot", m.root, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}, env...)
	return m.enter(append(line, args...)...)
}

// run runs a shell command and returns its output. A failure ends the test.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, err := m.command(nil, "sh", "-c", script).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// fails runs a shell command that must fail.
func (m *machine) fails(script string) {
	m.t.Helper()
	if out, err := m.command(nil, "sh", "-c", script).CombinedOutput(); err == nil {
		m.t.Errorf("%s succeeds: %s", script, out)
	}
}

// write writes a file, with the owner and mode that a user would choose.
func (m *machine) write(path, owner, mode, text string) {
	m.t.Helper()
	c := m.command(nil, "sh", "-c", fmt.Sprintf("mkdir -p $(dirname %[1]s) && install -m %[2]s -o %[3]s /dev/stdin %[1]s", path, mode, owner))
	c.Stdin = strings.NewReader(text)
	if out, err := c.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", path, err, out)
	}
}

// copyIn copies a file of this machine into the machine's /root.
func (m *machine) copyIn(file string) string {
	m.t.Helper()
	to := "/root/" + filepath.Base(file)
	if out, err := m.enter("cp", file, m.root+to).CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return to
}

// start starts a process on the machine that runs until the test ends.
func (m *machine) start(env []string, args ...string) *testenv.Buffer {
	m.t.Helper()
	out := &testenv.Buffer{}
	c := m.command(env, args...)
	c.Stdout, c.Stderr = out, out
	c.WaitDelay = time.Second // the program itself ends with the machine
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		if m.t.Failed() {
			m.t.Logf("%s:\n%s", args[0], out)
		}
	})
	return out
}

// eventually repeats a shell command until it succeeds.
func (m *machine) eventually(script string) {
	m.t.Helper()
	var out []byte
	err := error(nil)
	for end := time.Now().Add(testTimeout); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if out, err = m.command(nil, "sh", "-c", script).CombinedOutput(); err == nil {
			return
		}
	}
	m.t.Fatalf("%s: %v: %s", script, err, out)
}

// unit is a systemd unit file: values by name.
type unit map[string][]string

// unit reads an installed unit.
func (m *machine) unit(name string) unit {
	m.t.Helper()
	u := unit{}
	for line := range strings.Lines(m.run("cat /usr/lib/systemd/system/" + name)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			u[key] = append(u[key], value)
		}
	}
	return u
}

// environment returns the variables of a unit as systemd sets them: files override the unit, later files earlier ones.
func (m *machine) environment(u unit) []string {
	m.t.Helper()
	var env []string
	for _, value := range u["Environment"] {
		env = append(env, strings.Fields(value)...)
	}
	for _, file := range u["EnvironmentFile"] {
		text := m.run("cat " + strings.TrimPrefix(file, "-") + " 2>/dev/null || true")
		for line := range strings.Lines(text) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
				env = append(env, name+"="+strings.Trim(value, `'"`))
			}
		}
	}
	return env
}

// words splits a command line of a unit, and expands the variables of env.
func (u unit) words(setting string, env []string) []string {
	value := func(name string) string {
		for i := len(env) - 1; i >= 0; i-- {
			if v, ok := strings.CutPrefix(env[i], name+"="); ok {
				return v
			}
		}
		return ""
	}
	return strings.Fields(os.Expand(strings.Join(u[setting], " "), value))
}

// runUnit runs one of the command lines of a unit.
func (m *machine) runUnit(u unit, setting string) {
	m.t.Helper()
	env := m.environment(u)
	if out, err := m.command(env, u.words(setting, env)...).CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v\n%s", setting, err, bytes.TrimSpace(out))
	}
}
