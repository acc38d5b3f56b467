package mesh

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/envoy"
	"github.com/pilotfish-mesh/pilotfish/internal/portowner"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const oneApp = `
  workloads:
  - {name: a, command: ["${PILOTFISH}", app, "child=300", "runaway=300"], ` + appPort + `}
`

func TestSecondMeshWithSameNameIsRefused(t *testing.T) {
	cfg := testConfig(t, testTopology(t, oneApp))
	m := startMesh(t, cfg)
	m.waitReady()
	second, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = second.Run(context.Background())
	var running *AlreadyRunningError
	if !errors.As(err, &running) || running.PID != os.Getpid() || !strings.Contains(err.Error(), "pilotfish down") {
		t.Errorf("got %v", err)
	}
	if !m.instance("a").Ready {
		t.Error("the first mesh is not ready after the second was refused")
	}
}

func TestTwoMeshesRunConcurrently(t *testing.T) {
	a, b := startMesh(t, testConfig(t, testTopology(t, oneApp))), startMesh(t, testConfig(t, testTopology(t, oneApp)))
	a.waitReady()
	b.waitReady()
	if n, o := a.Status(context.Background()).Network, b.Status(context.Background()).Network; n == o {
		t.Errorf("both meshes use the network %s", n)
	}
}

// startUp runs a mesh in its own process until it is ready.
func startUp(t *testing.T, file, runtimeDir, guarded, agent string, more ...string) (cmd *exec.Cmd, runID string) {
	t.Helper()
	cmd = exec.Command(os.Args[0], append([]string{"up", file, runtimeDir, testenv.Envoy(t), guarded, agent}, more...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	lines.Scan()
	runID = lines.Text()
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the mesh is not ready: %q", lines.Text())
	}
	return cmd, runID
}

func TestKilledMeshIsCleanedUp(t *testing.T) {
	top, dir := testTopology(t, oneApp), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "guarded", "fake-agent")
	if n := len(processesWithVariable(runVariable + "=" + run)); n != 4 {
		t.Fatalf("%d processes run, want 4", n)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all processes end", func() bool { return len(processesWithVariable(runVariable+"="+run)) == 0 })
	eventually(t, "all files are removed", func() bool { _, err := os.Stat(dir); return errors.Is(err, os.ErrNotExist) })
}

func TestLeftoversOfKilledMeshAreRemoved(t *testing.T) {
	top, dir := testTopology(t, oneApp), shortDir(t)
	cmd, run := startUp(t, top.File, dir, "unguarded", "fake-agent")
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the agent and the application end", func() bool { return len(processesWithVariable(runVariable+"="+run)) == 2 })
	cfg := testConfig(t, top)
	cfg.RuntimeDir = dir
	m := startMesh(t, cfg)
	m.waitReady()
	m.find("the removed leftovers", func(e Event) bool {
		return strings.Contains(e.Line, "processes that an earlier run of this mesh had left")
	})
	if left := processesWithVariable(runVariable + "=" + run); len(left) != 0 {
		t.Errorf("processes %v still run", left)
	}
}

func TestOnlyProcessesOfTheRunAreKilled(t *testing.T) {
	dir := t.TempDir()
	sleep := exec.Command("sleep", "300")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sleep.Process.Kill(); _ = sleep.Wait() })
	l, err := newRunRecord(dir, "run-of-this-test")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.add(sleep.Process.Pid); err != nil {
		t.Fatal(err)
	}
	l.run.Processes[0].Start-- // simulates another process with the same ID
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	if killed, err := killLeftovers(dir); len(killed) != 0 || err != nil {
		t.Errorf("killed %v (%v)", killed, err)
	}
	l.run.Processes[0].Start++
	l.run.Boot = "another boot"
	if err := l.write(); err != nil {
		t.Fatal(err)
	}
	if killed, err := killLeftovers(dir); len(killed) != 0 || err != nil {
		t.Errorf("killed %v of another boot (%v)", killed, err)
	}
	if err := sleep.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("a process of another run was killed")
	}
}

// runToError runs a mesh that cannot be started, and checks that it leaves nothing behind.
func runToError(t *testing.T, cfg Config) error {
	t.Helper()
	m, err := New(cfg)
	if err != nil {
		return err
	}
	err = m.Run(context.Background())
	if err == nil {
		t.Fatal("Run returned no error")
	}
	if _, statErr := os.Stat(m.RuntimePath()); statErr == nil {
		t.Error("the runtime directory still exists")
	}
	return err
}

func TestMissingEnvoyIsReportedWithRemedy(t *testing.T) {
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.EnvoyPath, cfg.Environ = "", []string{"HOME=" + t.TempDir(), "PATH=/nowhere"}
	err := runToError(t, cfg)
	var missing *envoy.NotFoundError
	if !errors.As(err, &missing) || !strings.Contains(err.Error(), "make envoy") {
		t.Errorf("got %v", err)
	}
}

func TestTooOldEnvoyIsReportedWithVersions(t *testing.T) {
	old := filepath.Join(t.TempDir(), "envoy")
	script := "#!/bin/sh\necho 'envoy  version: aaaa/1.30.1/Clean/RELEASE/BoringSSL'\n"
	testenv.Program(t, old, []byte(script))
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.EnvoyPath = ""
	cfg.Environ = append(cfg.Environ, "ENVOY_PATH="+old)
	err := runToError(t, cfg)
	var tooOld *envoy.TooOldError
	if !errors.As(err, &tooOld) || !strings.Contains(err.Error(), "1.30.1") || !strings.Contains(err.Error(), old) {
		t.Errorf("got %v", err)
	}
}

func TestPortInUseNamesOwner(t *testing.T) {
	for what, address := range map[string]string{
		"published":     "127.0.0.1:0",
		"application's": fmt.Sprintf("127.%d.2.2:9080", testNetwork()),
		"proxy's":       fmt.Sprintf("127.%d.2.1:9080", testNetwork()),
		"control plane": fmt.Sprintf("127.%d.0.1:15012", testNetwork()),
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.Listen("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			publish := ""
			if what == "published" {
				publish = fmt.Sprintf(", ports: [{port: 8080, publish: %q}]", l.Addr())
			}
			err = runToError(t, testConfig(t, testTopology(t, fmt.Sprintf(`
  network: 127.%d.0.0/16
  workloads:
  - {name: gate, type: gateway%s}
  - {name: a, command: [x], %s}
`, testNetwork(), publish, appPort))))
			var conflict *portowner.ConflictError
			if !errors.As(err, &conflict) || conflict.Address != l.Addr().String() || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// testNetwork returns a network that probably no other test process uses. It is outside of the range from which meshes
// choose by default, and of the networks of other packages' tests.
func testNetwork() int { return 230 + os.Getpid()%25 }

func TestNetworkOfAnotherMeshIsRefused(t *testing.T) {
	spec := fmt.Sprintf("  network: 127.%d.0.0/16\n  workloads: [{name: gate, type: gateway}]\n", testNetwork())
	m := startMesh(t, testConfig(t, testTopology(t, spec)))
	m.waitReady()
	err := runToError(t, testConfig(t, testTopology(t, spec)))
	if !strings.Contains(err.Error(), "another mesh uses the network") {
		t.Errorf("got %v", err)
	}
}

func TestUnwritableRuntimeDirectoryIsReported(t *testing.T) {
	open := filepath.Join(t.TempDir(), "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil { // #nosec G302 -- the test needs this mode
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ dir, want string }{
		"not to be made":      {"/proc/pilotfish", "creating the runtime directory"},
		"open to others":      {open, "only this user can use"},
		"a file":              {file, "only this user can use"},
		"too long for socket": {filepath.Join(shortDir(t), strings.Repeat("x", 100)), "--runtime-dir or XDG_RUNTIME_DIR"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t, testTopology(t, oneApp))
			cfg.RuntimeDir = tc.dir
			if err := runToError(t, cfg); !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestUnwritableStateDirectoryIsReported(t *testing.T) {
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.StateDir = "/proc/pilotfish"
	if err := runToError(t, cfg); !strings.Contains(err.Error(), "/proc/pilotfish") || !strings.Contains(err.Error(), "specify another state directory") {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskIsReportedAndCleanedUp(t *testing.T) {
	dir, runtimeDir := t.TempDir(), shortDir(t)
	writeTopology(t, dir, oneApp)
	// The test runs in its own process: the limit applies to all files that a process writes, also to the test's own.
	cmd := exec.Command("sh", "-c", `trap '' XFSZ; ulimit -f 0; exec "$0" "$@"`,
		os.Args[0], "up", filepath.Join(dir, "mesh.yaml"), runtimeDir, testenv.Envoy(t), "", "fake-agent")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), syscall.EFBIG.Error()) || !strings.Contains(string(out), "ulimit -f") {
		t.Errorf("got %v: %s", err, out)
	}
	if left, _ := os.ReadDir(runtimeDir); len(left) > 0 {
		t.Errorf("%s is left in the runtime directory", left[0].Name())
	}
}

func TestFullFileSystemIsReportedWithRemedy(t *testing.T) {
	dir := filepath.Dir(shortDir(t))
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k,nr_inodes=4"); err != nil {
		t.Logf("no file system can be mounted here (%v): TestFullDiskIsReportedAndCleanedUp replaces it", err)
		return
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	cfg := testConfig(t, testTopology(t, oneApp))
	cfg.RuntimeDir = filepath.Join(dir, "run")
	if err := runToError(t, cfg); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space on its disk") {
		t.Errorf("got %v", err)
	}
}

func TestMissingProgramIsReported(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]string{
		"./nowhere":            "fix the first item of command",
		"no-such-program-here": "in PATH",
		plain:                  "is not executable: make the file executable",
	} {
		m := startMesh(t, testConfig(t, testTopology(t, "  workloads:\n  - {name: a, restart: never, command: ["+command+"]}\n")))
		failed := m.find("the failure", func(e Event) bool { return e.Kind == Failed })
		if !strings.Contains(failed.Message, want) {
			t.Errorf("%s: got %q, want %q", command, failed.Message, want)
		}
		m.stop()
	}
}
