package agent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	systemdProgram = "/lib/systemd/systemd"
	// unitUser is the UID of the unit on the test machine.
	unitUser = 61_184
	// unitEnd is appended to the unit: it redirects the output, and records each stop.
	unitEnd = `[Service]
StandardOutput=append:/var/log/agent
StandardError=inherit
ExecStopPost=/bin/sh -c 'echo "$SERVICE_RESULT $EXIT_CODE $EXIT_STATUS" >>/var/log/pilotfish/ends'
`
	// bootMachine is a script that creates a machine from namespaces and a control group, with systemd as its first
	// process. It mounts the files that the machine needs from its directory $0 before it hides that directory. $1 is
	// the agent's binary and $2 Envoy's.
	bootMachine = `set -e
mount --bind "$1" "$0/bin/pilotfish-agent"
mount --bind "$2" "$0/bin/envoy"
mount --bind "$0/log/kmsg" /dev/kmsg
mount --rbind "$0/bin" /usr/local/bin
mount --bind "$0/lib" /var/lib
mount --bind "$0/log" /var/log
mount --bind "$0/etc" /etc
for dir in /run /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs $dir; done
umount -l /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd /
exec env -i container=test SYSTEMD_UNIT_PATH=/etc/systemd/system ` + systemdProgram + ` --system --unit=idle.target --log-target=kmsg`
)

// systemdMachine is a machine with systemd and the unit that docs/vm.md describes, and no other service.
type systemdMachine struct {
	*agentProcess
	systemd int // PID of systemd outside the machine
}

// bootSystemd starts a machine with the agent of the setup and no other services.
func bootSystemd(t *testing.T, s *agentSetup) *systemdMachine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the machine has mounts, users and control groups of its own")
	}
	if _, err := os.Stat(systemdProgram); err != nil {
		t.Skip("systemd is not installed")
	}
	s.installUnit(t)
	group, err := os.MkdirTemp("/sys/fs/cgroup/unified", "pilotfish-test-")
	if errors.Is(err, os.ErrNotExist) {
		group, err = os.MkdirTemp("/sys/fs/cgroup", "pilotfish-test-")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { testenv.RemoveCgroups(filepath.Base(group), testTimeout) })
	boot := *s
	boot.binary = "/bin/sh"
	boot.args = []string{"-c", `echo $$ >"` + group + `/cgroup.procs" && exec unshare --mount --pid --cgroup --ipc --uts --fork --kill-child --mount-proc /bin/sh -c "$0" "$@"`,
		bootMachine, s.dir, os.Args[0], testenv.Envoy(t)}
	m := &systemdMachine{agentProcess: boot.start(t)}
	t.Cleanup(func() {

		if t.Failed() {
			t.Logf("the service's output:\n%s", m.read("log/agent"))
			t.Logf("%v, and systemd's:\n%s", m.unit()["ExecMainStatus"], m.read("log/kmsg"))
		}
	})
	m.eventually("systemd is the machine's first process", func() error {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", m.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if m.systemd, err = strconv.Atoi(strings.TrimSpace(string(children))); err != nil {
			return err
		}
		out, err := m.runInside("systemctl", "is-active", "idle.target")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	return m
}

// installUnit installs the files that docs/vm.md lists.
func (s *agentSetup) installUnit(t *testing.T) {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(testenv.Root(), "examples/systemd/pilotfish-agent.service"))
	if err != nil {
		t.Fatal(err)
	}
	// /usr/bin contains the programs of the test's host, so the machine has the agent in /usr/local/bin.
	s.write(t, "etc/systemd/system/pilotfish-agent.service", strings.ReplaceAll(string(unit), "/usr/bin/", "/usr/local/bin/"))
	s.write(t, "etc/systemd/system/pilotfish-agent.service.d/end.conf", unitEnd)
	for _, name := range []string{"idle", "sysinit", "basic", "shutdown"} {
		s.write(t, "etc/systemd/system/"+name+".target", "[Unit]\nDefaultDependencies=no\n")
	}
	s.write(t, "etc/passwd", fmt.Sprintf("root:x:0:0::/root:/bin/sh\npilotfish:x:%d:%[1]d::/var/lib/pilotfish:/usr/sbin/nologin\n", unitUser))
	s.write(t, "etc/group", fmt.Sprintf("root:x:0:\npilotfish:x:%d:\n", unitUser))
	s.write(t, "etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
	s.write(t, "etc/hosts", "127.0.0.1 localhost\n")
	s.write(t, "etc/machine-id", strings.Repeat("0123456789abcdef", 2)+"\n")
	for _, name := range []string{"bin/pilotfish-agent", "bin/envoy", "log/kmsg"} {
		s.write(t, name, "")
	}
	s.setUnit(t)
	home := filepath.Join(s.dir, "lib/pilotfish")
	if err := os.MkdirAll(home, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(s.dir, "var"), filepath.Join(home, "var")); err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(home, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, unitUser, unitUser))
	})
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(s.dir, "etc"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "agent.env" {
			err = os.Chmod(path, 0o644)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// setUnit writes the unit's settings: those of the setup, and more.
func (s *agentSetup) setUnit(t *testing.T, more ...string) {
	t.Helper()
	var b strings.Builder
	given := slices.DeleteFunc(slices.Clone(s.env), func(setting string) bool { // systemd and the unit set these
		return strings.HasPrefix(setting, "HOME=") || strings.HasPrefix(setting, "GOCOVERDIR=") || strings.HasPrefix(setting, "ENVOY_PATH=")
	})
	for _, setting := range append(given, more...) {
		name, value, _ := strings.Cut(setting, "=")
		fmt.Fprintf(&b, "%s='%s'\n", name, value)
	}
	s.write(t, "etc/pilotfish/agent.env", b.String())
}

// runInside runs a command on the machine.
func (m *systemdMachine) runInside(command ...string) (string, error) {
	cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(m.systemd), "--mount", "--pid"}, command...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *systemdMachine) systemctl(args ...string) {
	m.t.Helper()
	if out, err := m.runInside(append([]string{"systemctl"}, args...)...); err != nil {
		m.t.Fatalf("systemctl %q: %v: %s", args, err, out)
	}
}

// unit returns the unit's properties.
func (m *systemdMachine) unit() map[string]string {
	out, err := m.runInside("systemctl", "show", "pilotfish-agent")
	if err != nil {
		m.t.Fatalf("systemctl show: %v: %s", err, out)
	}
	known := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		known[name] = value
	}
	return known
}

// waitUnit waits until the unit's properties have these values, or values with these prefixes.
func (m *systemdMachine) waitUnit(want map[string]string) map[string]string {
	m.t.Helper()
	var unit map[string]string
	m.eventually(fmt.Sprintf("systemd knows %v", want), func() error {
		unit = m.unit()
		for name, value := range want {
			if got := unit[name]; !strings.HasPrefix(got, value) || value == "" && got != "" {
				return fmt.Errorf("%s=%s, end %s", name, got, m.read("log/pilotfish/ends"))
			}
		}
		return nil
	})
	return unit
}

// checkPrivateFiles checks the owners and modes of files in the bootstrap's directory: no other user may access them.
func (m *systemdMachine) checkPrivateFiles(names ...string) {
	m.t.Helper()
	for _, name := range names {
		info, err := os.Lstat(filepath.Join(m.dir, "lib/pilotfish/etc/istio/proxy", name))
		if err != nil {
			m.t.Error(err)
			continue
		}
		if owner := info.Sys().(*syscall.Stat_t).Uid; owner != unitUser || info.Mode().Perm() != 0o600 {
			m.t.Errorf("%s is of user %d with mode %o, want %d with 600", name, owner, info.Mode().Perm(), unitUser)
		}
	}
}

func (m *systemdMachine) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(m.dir, name))
	return string(text)
}

// waitStopped waits until systemd has logged the unit's stop the specified number of times, and returns the last
// message.
func (m *systemdMachine) waitStopped(times int) (last string) {
	m.t.Helper()
	m.eventually(fmt.Sprintf("end %d of the service", times), func() error {
		all := strings.Split(strings.TrimSpace(m.read("log/pilotfish/ends")), "\n")
		if last = all[len(all)-1]; len(all) < times || last == "" {
			return fmt.Errorf("its logged stops are %q", all)
		}
		return nil
	})
	return last
}

// TestSystemdRestartsService runs the shipped unit under a real systemd.
func TestSystemdRestartsService(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.107.43.1")
	m := bootSystemd(t, s)
	running := map[string]string{"ActiveState": "active", "SubState": "running", "StatusText": "ready"}

	m.systemctl("start", "--no-block", "pilotfish-agent")
	m.waitUnit(map[string]string{"ActiveState": "activating", "StatusText": "not ready: "})
	s.cp.start(t)
	first := m.waitUnit(running)

	m.checkPrivateFiles("XDS", "envoy-rev.json", "control", "../../../var/run/secrets/workload-spiffe-uds/socket")

	// The agent handles an exit of Envoy itself.
	envoy := m.waitState(stateRunning).PID
	if out, err := m.runInside("sh", "-c", fmt.Sprintf("kill -SEGV %d", envoy)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	m.eventually("another Envoy runs", func() error {
		now, err := m.envoyStatus()
		if err == nil && (now.PID == envoy || now.State != stateRunning) {
			err = fmt.Errorf("%+v", now)
		}
		return err
	})
	if now := m.waitUnit(running); now["MainPID"] != first["MainPID"] || now["NRestarts"] != "0" {
		t.Errorf("the agent was started again: %s and %s, %s restarts", first["MainPID"], now["MainPID"], now["NRestarts"])
	}

	m.systemctl("reload", "pilotfish-agent")
	m.eventually("the agent reopens its log files", func() error {
		if !strings.Contains(m.read("log/agent"), "reopened") {
			return errors.New("the log does not say so")
		}
		return nil
	})

	m.systemctl("kill", "--kill-whom=main", "--signal=KILL", "pilotfish-agent")
	if end := m.waitStopped(1); end != "signal killed KILL" {
		t.Errorf("killed, it ended by %q", end)
	}
	second := m.waitUnit(map[string]string{"ActiveState": "active", "SubState": "running", "StatusText": "ready", "NRestarts": "1"})
	if second["MainPID"] == first["MainPID"] {
		t.Error("the killed agent still runs")
	}

	m.systemctl("stop", "pilotfish-agent")
	if end := m.waitStopped(2); end != "success exited 0" {
		t.Errorf("stopped, it ended by %q", end)
	}
	stopped := map[string]string{"ActiveState": "inactive", "SubState": "dead", "Result": "success"}
	m.waitUnit(stopped)

	// Errors that a restart cannot fix are left to the operator.
	for n, c := range []struct{ setting, end, status string }{
		{"ENVOY_STATUS_PORT=99999", "exit-code exited 2", ""},
		{"ENVOY_PATH=/usr/local/bin/missing", "exit-code exited 127", "envoy: no Envoy found"},
	} {
		s.setUnit(t, c.setting)
		if out, err := m.runInside("systemctl", "start", "pilotfish-agent"); err == nil {
			t.Errorf("%s: it started: %s", c.setting, out)
		}
		if end := m.waitStopped(3 + n); end != c.end {
			t.Errorf("%s: it ended by %q, want %q", c.setting, end, c.end)
		}
		m.waitUnit(map[string]string{"ActiveState": "failed", "Result": "exit-code", "NRestarts": "0", "StatusText": c.status})
	}

	// An agent that hangs.
	s.setUnit(t)
	s.write(t, "etc/systemd/system/pilotfish-agent.service.d/watchdog.conf", "[Service]\nWatchdogSec=5s\n")
	m.systemctl("daemon-reload")
	m.systemctl("start", "pilotfish-agent")
	third := m.waitUnit(running)
	m.systemctl("kill", "--kill-whom=main", "--signal=STOP", "pilotfish-agent")
	if end := m.waitStopped(5); end != "watchdog killed ABRT" {
		t.Errorf("hanging, it ended by %q", end)
	}
	m.eventually("another agent is ready", func() error {
		if now := m.unit(); now["ActiveState"] != "active" || now["MainPID"] == third["MainPID"] {
			return fmt.Errorf("%s, MainPID %s", now["ActiveState"], now["MainPID"])
		}
		return nil
	})
	if !strings.Contains(m.read("log/agent"), "SIGABRT: abort") {
		t.Error("the journal would have no stack traces of the agent that hung")
	}
	m.systemctl("stop", "pilotfish-agent")
	m.waitUnit(stopped)
	if err := syscall.Kill(m.systemd, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestAgentEnvRestoresAdminPortAndRequestsOfAllUsers(t *testing.T) {
	t.Parallel()
	s := newSetup(t, "127.107.43.2")
	m := bootSystemd(t, s)
	s.cp.start(t)
	for _, c := range []struct {
		settings []string
		admin    bool
		debug    string
	}{
		{nil, false, "403"},
		{[]string{"ENVOY_ADMIN_SOCKET=", "STATUS_PORT_USERS=any"}, true, "200"},
	} {
		s.setUnit(t, c.settings...)
		m.systemctl("start", "pilotfish-agent")
		if code, _, err := m.tcp("GET", "15000/server_info"); (err == nil && code == 200) != c.admin {
			t.Errorf("%q: Envoy's admin interface at port 15000: %d, %v", c.settings, code, err)
		}
		if code := m.statusAsOtherUser("/debug/envoyz"); code != c.debug {
			t.Errorf("%q: another user gets %s from the status port, want %s", c.settings, code, c.debug)
		}
		m.systemctl("stop", "pilotfish-agent")
	}
}

// statusAsOtherUser returns the HTTP status that the status port returns to a user who is neither the unit's nor root.
func (m *systemdMachine) statusAsOtherUser(page string) string {
	m.t.Helper()
	script := fmt.Sprintf(`exec 3<>/dev/tcp/%s/15020; printf 'GET %s HTTP/1.0\r\nHost: %[1]s\r\n\r\n' >&3; read -r _ code _ <&3; echo "$code"`, m.address, page)
	client := exec.Command("bash", "-c", script)
	client.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unitUser + 1, Gid: unitUser + 1}}
	out, err := client.CombinedOutput()
	if err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}
