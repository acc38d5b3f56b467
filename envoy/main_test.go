package envoy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// helperEnv makes the test binary run a helper program instead of tests.
const helperEnv = "PILOTFISH_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "owner":
		helperOwner()
	case "hog":
		helperHog()
	case "starve":
		helperStarve()
	case "hold":
		helperTrace()
	default:
		goleak.VerifyTestMain(m)
	}
	os.Exit(0)
}

// helperOwner starts an Envoy, prints its process ID, and waits until it is killed.
func helperOwner() {
	p, err := Start(Config{Path: os.Args[1], Args: os.Args[2:]})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	select {}
}

// helperHog allocates memory until it is killed.
func helperHog() {
	var all [][]byte
	for range 1024 {
		block := make([]byte, 1<<20)
		for i := 0; i < len(block); i += 4096 {
			block[i] = 1
		}
		all = append(all, block)
	}
	fmt.Println(len(all))
}

// helperStarve joins the cgroup whose cgroup.procs is its argument, starts a hog there, and prints how the hog ended.
func helperStarve() {
	if err := os.WriteFile(os.Args[1], []byte(fmt.Sprint(os.Getpid())), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	self, _ := os.Executable()
	p, err := Start(Config{Path: self, Env: []string{helperEnv + "=hog"}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = json.NewEncoder(os.Stdout).Encode(p.Exit())
}

// helper returns a command that runs the test binary as one of the helper programs.
func helper(t *testing.T, role string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+role)
	cmd.Stderr = os.Stderr
	return cmd
}

// script writes a shell script that replaces Envoy.
func script(t *testing.T, dir, name, body string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.Program(t, path, []byte("#!/bin/sh\n"+body+"\n"))
	return path
}

// fakeEnvoy writes a script that only reports a version.
func fakeEnvoy(t *testing.T, dir, name, version string) string {
	t.Helper()
	return script(t, dir, name, `echo "$0  version: 0123abcd/`+version+`/Clean/RELEASE/BoringSSL"`)
}

// start starts an Envoy process and stops it when the test ends.
func start(t *testing.T, c Config) *Process {
	t.Helper()
	p, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(expiredContext()) })
	return p
}

// expiredContext returns a cancelled context.
func expiredContext() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func contextWithTimeout(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout while waiting for: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// hasEnded reports whether a process has ended or is a zombie that its new parent has not reaped yet.
func hasEnded(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z")
}

// readLine reads the first line that a helper prints.
func readLine(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the helper printed nothing: %v", err)
	}
	return strings.TrimSpace(line)
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
