package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testns"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// The ordinary user of these tests is in the files of /etc that they have to themselves.
const (
	ordinaryID    = 7331
	ordinaryGroup = 731337 // of the machine's, for the proxies
	ordinaryHome  = "/etc/ordinary"
)

// ownEtc mounts a private copy of /etc for a test, which also holds a user's home. It is removed with its mounts.
const ownEtc = "mount -t tmpfs tmpfs /mnt && cp -a /etc/. /mnt/ && mount --move /mnt /etc"

// asOrdinaryUser creates an ordinary user with home, programs and directories for pilotfish. It skips the test if that user
// may not create user namespaces. It returns false after it has run the test again in a process with its own mounts.
func asOrdinaryUser(t *testing.T) bool {
	t.Helper()
	if err := mesh.CanCapture(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("newgidmap"); err != nil {
		t.Skip("newgidmap is not here: scripts/iptables.sh installs it where that is possible")
	}
	probe := exec.Command("unshare", "--user", "--map-root-user", "--net", "true")
	probe.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryID, Gid: ordinaryID}}
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("an ordinary user may make no user namespace here: %v: %s", err, out)
	}
	if !testns.EnterPrivateMounts(t, ownEtc) {
		return false
	}
	appendTo(t, "/etc/passwd", fmt.Sprintf("ordinary:x:%d:%d::%s:/bin/sh\n", ordinaryID, ordinaryID, ordinaryHome))
	write(t, "/etc/subgid", fmt.Sprintf("somebody:100000:65536\nordinary:%d:1\n", ordinaryGroup))
	for to, from := range map[string]string{"bin": filepath.Dir(testenv.Bin(t, "pilotfish")), "envoy": filepath.Dir(testenv.Envoy(t))} {
		makeUserFolder(t, to)
		if err := unix.Mount(from, filepath.Join(ordinaryHome, to), "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
	}
	makeUserFolder(t, "tmp")
	makeUserFolder(t, "run")
	return true
}

func makeUserFolder(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(ordinaryHome, name)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{ordinaryHome, path} {
		if err := os.Chown(p, ordinaryID, ordinaryID); err != nil {
			t.Fatal(err)
		}
	}
}

func appendTo(t *testing.T, path, text string) {
	t.Helper()
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(old)+text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pilotfishAsUser is pilotfish as that user runs it.
func pilotfishAsUser(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := pilotfish(t, args...)
	cmd.Path, cmd.Dir = filepath.Join(ordinaryHome, "bin", "pilotfish"), ordinaryHome
	cmd.Env = []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + ordinaryHome, "ENVOY_PATH=" + filepath.Join(ordinaryHome, "envoy", "envoy"),
		"TMPDIR=" + filepath.Join(ordinaryHome, "tmp"), "XDG_RUNTIME_DIR=" + filepath.Join(ordinaryHome, "run"),
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryID, Gid: ordinaryID}}
	return cmd
}

// runAsUser runs it to its end.
func runAsUser(t *testing.T, wantCode int, args ...string) string {
	t.Helper()
	out, err := pilotfishAsUser(t, args...).CombinedOutput()
	if code := exitCode(err); code != wantCode {
		t.Fatalf("pilotfish %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, wantCode, out)
	}
	return string(out)
}

func checkNothingLeft(t *testing.T) {
	t.Helper()
	waitFor(t, "end of all of the user's processes", nil, func() bool { return len(listProcesses(t, ordinaryID)) == 0 })
	for _, name := range []string{"tmp", "run"} {
		if left := filesBelow(t, filepath.Join(ordinaryHome, name)); len(left) > 0 {
			t.Errorf("left in the user's %s: %v", name, left)
		}
	}
}

// listProcesses are those of a user that run.
func listProcesses(t *testing.T, uid uint32) (pids []int) {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if info, err := os.Stat(folder); err == nil && info.Sys().(*syscall.Stat_t).Uid == uid && startTime(pid) != "" {
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestDemoChecksSucceedForOrdinaryUserWithCapture(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	out, err := pilotfishAsUser(t, "demo", "--check", "--capture", "-o", "json").Output()
	checkDemoResult(t, out, err)
	checkNothingLeft(t)
}

func TestCommandsOnCapturedMeshOfOrdinaryUser(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	port := testenv.FreePort(t)
	runAsUser(t, 0, "demo", "--write", "shop")
	replaceInFile(t, filepath.Join(ordinaryHome, "shop", "mesh.yaml"), "publish: 8080", "publish: "+strconv.Itoa(port))
	runAsUser(t, 0, "up", "-f", "shop/mesh.yaml", "--capture", "--detach")
	t.Cleanup(func() { _ = pilotfishAsUser(t, "down").Run() }) // down already, when all is well

	if page := get(t, fmt.Sprintf("http://127.0.0.1:%d/", port)); !strings.Contains(page, "<html") {
		t.Errorf("the gateway gives this machine no page: %.200s", page)
	}
	if text := runAsUser(t, 0, "exec", "page-v1", "--", "curl", "-s", "http://reviews:9080/reviews/1"); !strings.Contains(text, "ns/bookshop/sa/page") {
		t.Errorf("it does not call as the workload: %s", text)
	}
	text := runAsUser(t, 7, "exec", "page-v1", "--", "sh", "-c", "pwd; id -u; id -g; grep CapEff /proc/self/status; exit 7")
	if want := fmt.Sprintf("%s\n%d\n%d\nCapEff:\t0000000000000000\n", ordinaryHome, ordinaryID, ordinaryID); text != want {
		t.Errorf("a command runs otherwise than its user runs it: got %q, want %q", text, want)
	}
	lacking := pilotfishAsUser(t, "exec", "page-v1", "--", "/bin/true")
	lacking.Env = append(lacking.Env, "PATH="+ordinaryHome)
	if out, err := lacking.CombinedOutput(); exitCode(err) != mesh.ExitCannotJoin || !strings.Contains(string(out), "util-linux") {
		t.Errorf("without nsenter: exit code %d, want %d and what to install:\n%s", exitCode(err), mesh.ExitCannotJoin, out)
	}
	outside := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer outside.Close()
	_, at, _ := net.SplitHostPort(outside.Listener.Addr().String())
	if text := runAsUser(t, 0, "exec", "page-v1", "--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://"+mesh.HostName+":"+at+"/"); text != "200" {
		t.Errorf("what listens on this machine's loopback is not reached: %q", text)
	}
	if text := runAsUser(t, 0, "proxy-status"); !strings.Contains(text, "page-v1.bookshop") {
		t.Errorf("proxy-status says %s", text)
	}
	checkProcessOwners(t)
	runAsUser(t, 0, "down")
	checkNothingLeft(t)
}

// checkProcessOwners looks at who the processes of a workload are on this machine.
func checkProcessOwners(t *testing.T) {
	t.Helper()
	var status mesh.Status
	if err := json.Unmarshal([]byte(runAsUser(t, 0, "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	if !status.Captured {
		t.Error("traffic is not captured")
	}
	for _, w := range status.Instances {
		groups := map[int]int{w.Agent.PID: ordinaryGroup, w.EnvoyPID: ordinaryGroup}
		if w.App != nil {
			groups[w.App.PID] = ordinaryID
		}
		for pid, group := range groups {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err != nil {
				t.Error(err)
			}
			for _, want := range []string{fmt.Sprintf("Uid:\t%d\t", ordinaryID), fmt.Sprintf("Gid:\t%d\t", group), "CapEff:\t0000000000000000", "CapInh:\t0000000000000000"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("%s: no %q for process %d:\n%s", w.Name, want, pid, text)
				}
			}
		}
	}
}

func TestCapturedMeshOfOrdinaryUserEndsWithItsProcess(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	runAsUser(t, 0, "demo", "--write", "shop")
	replaceInFile(t, filepath.Join(ordinaryHome, "shop", "mesh.yaml"), "publish: 8080", "publish: "+strconv.Itoa(testenv.FreePort(t)))
	for _, how := range []struct {
		signal syscall.Signal
		status int
	}{{syscall.SIGINT, 0}, {syscall.SIGKILL, -1}} {
		up := pilotfishAsUser(t, "up", "-f", "shop/mesh.yaml", "--capture")
		text := &testenv.Buffer{}
		up.Stdout, up.Stderr = text, text
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, "mesh", text, func() bool { return strings.Contains(text.String(), "The mesh is up") })
		if err := up.Process.Signal(how.signal); err != nil {
			t.Fatal(err)
		}
		if code := exitCode(up.Wait()); code != how.status {
			t.Errorf("after %v: exit code %d, want %d\n%s", how.signal, code, how.status, text)
		}
		checkNothingLeft(t)
	}
}

// There are two processes of it, and a terminal knows of one alone. It may stop who writes to it from elsewhere.
func TestCapturedMeshOfOrdinaryUserAtTerminal(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	runAsUser(t, 0, "demo", "--write", "shop")
	replaceInFile(t, filepath.Join(ordinaryHome, "shop", "mesh.yaml"), "publish: 8080", "publish: "+strconv.Itoa(testenv.FreePort(t)))
	keys, tty := testenv.Terminal(t)
	modes, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	modes.Lflag |= unix.TOSTOP
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, modes); err != nil {
		t.Fatal(err)
	}
	up := pilotfishAsUser(t, "up", "-f", "shop/mesh.yaml", "--capture")
	up.Stdin, up.Stdout, up.Stderr = tty, tty, tty
	up.SysProcAttr.Setsid, up.SysProcAttr.Setctty = true, true
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = up.Process.Kill() })
	_ = tty.Close()
	screen := &testenv.Buffer{}
	go func() { _, _ = io.Copy(screen, keys) }()
	waitFor(t, "mesh", screen, func() bool { return strings.Contains(screen.String(), "The mesh is up") })
	if _, err := keys.WriteString("\x03"); err != nil {
		t.Fatal(err)
	}
	if err := up.Wait(); err != nil {
		t.Errorf("after Ctrl-C: %v\n%s", err, screen)
	}
	waitFor(t, "last word", screen, func() bool { return strings.Contains(screen.String(), "none of its processes and files remain") })
	checkNothingLeft(t)
}

func TestMissingCapturePrivilegesAreReportedWithRemedy(t *testing.T) {
	if !asOrdinaryUser(t) {
		return
	}
	runAsUser(t, 0, "demo", "--write", "shop")
	refused := func(path, want string) {
		t.Helper()
		for _, args := range [][]string{{"up", "-f", "shop/mesh.yaml", "--capture"}, {"demo", "--capture"}} {
			cmd := pilotfishAsUser(t, args...)
			cmd.Env = append(cmd.Env, "PATH="+path)
			if out, err := cmd.CombinedOutput(); exitCode(err) != 2 || !strings.Contains(string(out), want) {
				t.Errorf("pilotfish %v: exit code %d, want 2 and %q:\n%s", args, exitCode(err), want, out)
			}
		}
		checkNothingLeft(t)
	}
	const usual = "/usr/sbin:/usr/bin:/sbin:/bin"
	refused(ordinaryHome, "install the package uidmap")
	refusing := filepath.Join(ordinaryHome, "refusing")
	makeUserFolder(t, "refusing")
	testenv.Program(t, filepath.Join(refusing, "newgidmap"), []byte("#!/bin/sh\necho it may not >&2; exit 1\n"))
	refused(refusing+":"+usual, "newgidmap: exit status 1: it may not: "+refusing+"/newgidmap has no privileges; run `sudo setcap cap_setgid=ep")
	kept := pilotfishAsUser(t, "demo", "--capture")
	kept.Path, kept.Args = "/usr/bin/setpriv", append([]string{"setpriv", "--no-new-privs", kept.Path}, kept.Args[1:]...)
	if out, err := kept.CombinedOutput(); exitCode(err) != 2 || !strings.Contains(string(out), "(no_new_privs, which for example NoNewPrivileges= of systemd sets)") {
		t.Errorf("where nobody gets privileges: exit code %d, want 2 and why:\n%s", exitCode(err), out)
	}
	write(t, "/etc/subgid", "somebody:100000:65536\nordinary:100000:0\n")
	refused(usual, "usermod --add-subgids 100000-165535 ordinary")
}
