package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// checkResult is what `pilotfish demo --check -o json` prints, as far as it is read here.
type checkResult struct {
	Checks []struct {
		Check    string `json:"check"`
		OK       bool   `json:"ok"`
		Evidence string `json:"evidence"`
	} `json:"checks"`
}

// expectedChecks must be in the result: a dropped check would otherwise look like one that passed.
var expectedChecks = []string{
	"all workloads ready", "page through the gateway", "weights over 1,000 requests", "route by header", "injected fault",
	"retry hides the fault", "timeout of a slow call", "STRICT mutual TLS", "identity of the caller",
	"authorization policy", "config edit without restart", "recovery of a killed Envoy", "control plane outage", "clean shutdown",
}

func TestDemoChecksSucceed(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		for _, mode := range []string{"--capture", "--no-capture"} {
			t.Run(version+mode, func(t *testing.T) { checkDemo(t, version, mode) })
		}
	}
}

func checkDemo(t *testing.T, version, mode string) {
	if mode == "--capture" && mesh.CanCapture() != nil {
		t.Skip(mesh.CanCapture())
	}
	out, err := pilotfish(t, "demo", "--check", mode, "-o", "json", "--runtime-dir", runtimeDir(t),
		"--envoy-path", testenv.EnvoyOf(t, version)).Output()
	checkDemoResult(t, out, err)
}

// checkDemoResult looks at what `demo --check -o json` printed, and how it ended.
func checkDemoResult(t *testing.T, out []byte, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("demo --check: %v", explain(err))
	}
	var result checkResult
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatalf("demo --check did not print JSON: %v\n%s", err, out)
	}
	seen := map[string]bool{}
	for _, c := range result.Checks {
		seen[c.Check] = true
		if !c.OK {
			t.Errorf("✗ %s: %s", c.Check, c.Evidence)
		}
	}
	for _, name := range expectedChecks {
		if !seen[name] {
			t.Errorf("the check says nothing of %q", name)
		}
	}
}

func TestCtrlCEndsTheDemoAndLeavesNothing(t *testing.T) {
	dir, temp := runtimeDir(t), t.TempDir()
	cmd := pilotfish(t, "demo", "--port", strconv.Itoa(testenv.FreePort(t)), "--runtime-dir", dir, "--envoy-path", testenv.Envoy(t))
	cmd.Env = append(os.Environ(), "TMPDIR="+temp)
	output := &testenv.Buffer{}
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // ended long ago, when all is well

	var url string
	waitFor(t, "the demo's URL", output, func() bool {
		url = findURL(output.String())
		return url != "" && strings.Contains(output.String(), "pilotfish status")
	})
	if page := get(t, url); !strings.Contains(page, "<html") {
		t.Errorf("%s is no page: %.200s", url, page)
	}

	second, err := pilotfish(t, "demo", "--port", strconv.Itoa(testenv.FreePort(t)), "--runtime-dir", dir, "--envoy-path", testenv.Envoy(t)).CombinedOutput()
	if err == nil || !strings.Contains(string(second), fmt.Sprint(cmd.Process.Pid)) {
		t.Errorf("a second demo was not refused with the first one's pid %d: %v\n%s", cmd.Process.Pid, err, second)
	}

	children := descendants(t, cmd.Process.Pid)
	if len(children) < 3*7 { // application, agent and Envoy of seven workloads
		t.Errorf("the demo has only %d processes", len(children))
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the demo ended with %v\n%s", err, output.String())
		}
	case <-time.After(15 * time.Second):
		t.Fatalf("the demo did not end\n%s", output.String())
	}
	for pid, start := range children {
		if startTime(pid) == start {
			t.Errorf("process %d is left: %s", pid, commandLine(pid))
		}
	}
	for _, folder := range []string{dir, temp} {
		if left := filesBelow(t, folder); len(left) > 0 {
			t.Errorf("files are left in %s: %v", folder, left)
		}
	}
}

func TestUpStatusDownAsAUserTypesThem(t *testing.T) {
	dir, shop := runtimeDir(t), filepath.Join(t.TempDir(), "shop")
	run := func(wantCode int, args ...string) string {
		t.Helper()
		out, err := pilotfish(t, args...).CombinedOutput()
		if code := exitCode(err); code != wantCode {
			t.Fatalf("pilotfish %s: exit code %d, want %d\n%s", strings.Join(args, " "), code, wantCode, out)
		}
		return string(out)
	}
	run(0, "demo", "--write", shop)
	file := filepath.Join(shop, "mesh.yaml")
	replaceInFile(t, file, "publish: 8080", "publish: "+strconv.Itoa(testenv.FreePort(t)))

	run(2, "status", "--runtime-dir", dir)
	run(0, "up", "-f", file, "--detach", "--runtime-dir", dir, "--envoy-path", testenv.Envoy(t))
	t.Cleanup(func() { _ = pilotfish(t, "down", "--runtime-dir", dir).Run() }) // down already, when all is well
	table := run(0, "status", "--runtime-dir", dir)
	for _, want := range []string{"reviews-v3", "ns/bookshop/sa/ratings", "in sync"} {
		if !strings.Contains(table, want) {
			t.Errorf("status does not say %q:\n%s", want, table)
		}
	}
	var status struct {
		Ready     bool
		Workloads []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(run(0, "status", "-o", "json", "--runtime-dir", dir)), &status); err != nil {
		t.Fatal(err)
	}
	if !status.Ready || len(status.Workloads) != 8 {
		t.Errorf("status -o json: ready %v, %d workloads; want true, 8", status.Ready, len(status.Workloads))
	}

	// Only the invalid document is refused, with its position; the mesh continues to run.
	reviews := filepath.Join(shop, "config", "reviews.yaml")
	replaceInFile(t, reviews, "weight: 60", "weight: sixty")
	waitFor(t, "the refusal in status", nil, func() bool {
		out, _ := pilotfish(t, "status", "--runtime-dir", dir).CombinedOutput()
		return strings.Contains(string(out), "reviews.yaml:") && strings.Contains(string(out), "sixty")
	})
	run(0, "down", "--runtime-dir", dir)
	run(2, "status", "--runtime-dir", dir)
	if left := filesBelow(t, dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func pilotfish(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, testenv.Bin(t, "pilotfish"), args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// runtimeDir is a folder with a short path, for the sockets in it.
func runtimeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func waitFor(t *testing.T, what string, output *testenv.Buffer, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !done(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			if output != nil {
				t.Log(output.String())
			}
			t.Fatalf("no %s within two minutes", what)
		}
	}
}

func findURL(text string) string {
	for _, word := range strings.Fields(text) {
		if strings.HasPrefix(word, "http://127.0.0.1:") || strings.HasPrefix(word, "http://localhost:") {
			return strings.TrimRight(word, ".,;")
		}
	}
	return ""
}

func get(t *testing.T, url string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "text/html")
	response, err := (&http.Client{Timeout: 5 * time.Second}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %s, %v\n%s", url, response.Status, err, body)
	}
	return string(body)
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := err.(*exec.ExitError); ok {
		return exit.ExitCode()
	}
	return -1
}

func explain(err error) string {
	if exit, ok := err.(*exec.ExitError); ok {
		return fmt.Sprintf("%v\n%s", err, exit.Stderr)
	}
	return err.Error()
}

func replaceInFile(t *testing.T, file, from, to string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), from) {
		t.Fatalf("%s has no %q", file, from)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), from, to, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func filesBelow(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
