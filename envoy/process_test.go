package envoy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const staticBootstrap = `
admin: {address: {pipe: {path: admin.sock}}}
static_resources:
  listeners:
  - name: echo
    address: {socket_address: {address: 127.41.1.1, port_value: 0}}
    filter_chains: [{filters: [{name: echo, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo}}]}]
`

// startEnvoy starts a real Envoy with a bootstrap and with its admin interface on a unix socket in its working
// directory.
func startEnvoy(t *testing.T, bootstrap string, change ...func(*Config)) (*Process, *Admin) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "envoy.yaml"), []byte(bootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	c := Config{Path: testenv.Envoy(t), Args: Options{ConfigPath: "envoy.yaml", Concurrency: 1}.Args(), Dir: dir}
	for _, f := range change {
		f(&c)
	}
	p := start(t, c)
	admin := NewAdmin(filepath.Join(dir, "admin.sock"))
	t.Cleanup(admin.Close)
	return p, admin
}

// waitReady polls until Envoy is ready.
func waitReady(t *testing.T, p *Process, a *Admin) {
	t.Helper()
	r := NewReadiness(ReadinessConfig{Admin: a})
	eventually(t, "a ready Envoy", func() bool {
		select {
		case <-p.Done():
			t.Fatalf("Envoy %s: %q", p.Exit(), p.Exit().Tail)
		default:
		}
		ok, _ := r.Check(t.Context())
		return ok
	})
}

func TestEnvoyStartsBecomesReadyAndStops(t *testing.T) {
	var mu sync.Mutex
	var lines []string
	p, admin := startEnvoy(t, staticBootstrap, func(c *Config) {
		c.Args = Options{ConfigPath: "envoy.yaml", LogLevel: "warning,admin:info", Concurrency: 1}.Args()
		c.Output = func(line string) { mu.Lock(); defer mu.Unlock(); lines = append(lines, line) }
	})
	waitReady(t, p, admin)
	e := p.Stop(contextWithTimeout(t, 10*time.Second))
	if e.Reason != Stopped || e.ExitCode() != 0 || e.Forced || e.String() != "stopped" {
		t.Errorf("Exit = %+v (%s), want a clean stop", e, e)
	}
	if !hasEnded(p.PID()) {
		t.Error("the process still exists")
	}
	if !slices.Equal(lines, e.Tail) || !strings.Contains(strings.Join(lines, "\n"), "caught ENVOY_SIGTERM") {
		t.Errorf("Output got %q, Tail is %q; want both to contain the SIGTERM message", lines, e.Tail)
	}
	if again := p.Stop(contextWithTimeout(t, time.Second)); again.Reason != Stopped {
		t.Errorf("a second Stop = %+v", again)
	}
}

func TestEnvoyKilledFromOutsideIsReportedAsSignaled(t *testing.T) {
	p, admin := startEnvoy(t, staticBootstrap)
	waitReady(t, p, admin)
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e := p.Exit()
	if e.Reason != Signaled || e.Signal != syscall.SIGKILL || e.ExitCode() != 137 {
		t.Errorf("Exit = %+v with exit code %d, want signaled, SIGKILL, 137", e, e.ExitCode())
	}
	if !strings.Contains(e.String(), "ended by SIGKILL (killed)") {
		t.Errorf("it is reported as %q", e)
	}
}

func TestRejectedConfigurationIsReportedWithCodeAndOutput(t *testing.T) {
	p, _ := startEnvoy(t, "static_resources: {no_such_field: 1}", func(c *Config) {
		c.Args = slices.DeleteFunc(c.Args, func(a string) bool { return a == "--allow-unknown-static-fields" })
	})
	e := p.Exit()
	if e.Reason != Exited || e.ExitCode() != 1 || !strings.Contains(e.String(), "exited with code 1") {
		t.Errorf("Exit = %+v (%s), want exit code 1", e, e)
	}
	if !strings.Contains(strings.Join(e.Tail, "\n"), "no_such_field") {
		t.Errorf("Tail = %q, want it to name the field", e.Tail)
	}
}

func TestExitCodeAndCrashSignalAreReported(t *testing.T) {
	for _, c := range []struct {
		body   string
		reason Reason
		code   int
		output string
	}{
		{"exit 3", Exited, 3, "exited with code 3"},
		{"exit 0", Exited, 0, "exited with code 0"},
		{"ulimit -c 0; kill -SEGV $$", Signaled, 139, "SIGSEGV (segmentation fault)"},
		{"ulimit -c 0; kill -ABRT $$", Signaled, 134, "SIGABRT"},
		{"kill -TERM $$", Signaled, 143, "SIGTERM"},
	} {
		e := start(t, Config{Path: script(t, t.TempDir(), "envoy", c.body)}).Exit()
		if e.Reason != c.reason || e.ExitCode() != c.code || !strings.Contains(e.String(), c.output) {
			t.Errorf("%q ends as %+v (%s), want %s with %d, reported as %q", c.body, e, e, c.reason, c.code, c.output)
		}
	}
}

// sendFirstLine sends the first line and discards later ones, which the shell writes.
func sendFirstLine(to chan<- string) func(string) {
	var once sync.Once
	return func(line string) { once.Do(func() { to <- line }) }
}

func TestExitIsReportedAlthoughOutputIsNotRead(t *testing.T) {
	stuck := make(chan struct{})
	taking := make(chan struct{})
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", "echo last words; exit 3"),
		Output: func(string) { close(taking); <-stuck },
	})
	<-taking
	e := p.Exit()
	if e.ExitCode() != 3 || !slices.Contains(e.Tail, "last words") {
		t.Errorf("Exit = %+v, want code 3 and the last line of output", e)
	}
	close(stuck)
}

func TestExitCode143AfterSIGTERMCountsAsStopped(t *testing.T) {
	ready := make(chan string, 1)
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", `trap 'kill $!; exit 143' TERM; sleep 600 & echo ready; wait`),
		Output: sendFirstLine(ready),
	})
	<-ready
	if e := p.Stop(contextWithTimeout(t, 10*time.Second)); e.Reason != Stopped || e.ExitCode() != 143 {
		t.Errorf("Exit = %+v, want stopped with 143", e)
	}
}

func TestEnvoyIgnoringSIGTERMIsKilledWithItsChildren(t *testing.T) {
	lines := make(chan string, 1)
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", `trap '' TERM; sleep 600 & echo $!; while :; do sleep 600; done`),
		Output: sendFirstLine(lines),
	})
	child, err := strconv.Atoi(<-lines)
	if err != nil {
		t.Fatal(err)
	}
	e := p.Stop(contextWithTimeout(t, 50*time.Millisecond))
	if e.Reason != Stopped || !e.Forced || e.Signal != syscall.SIGKILL || e.ExitCode() != 137 {
		t.Errorf("Exit = %+v, want stopped by force with 137", e)
	}
	eventually(t, "the end of the grandchild", func() bool { return hasEnded(child) })
}

func TestRemainingChildrenAreKilledWhenEnvoyExits(t *testing.T) {
	lines := make(chan string, 1)
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", `sleep 600 & echo $!; exit 0`),
		Output: sendFirstLine(lines),
	})
	child, err := strconv.Atoi(<-lines)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	eventually(t, "the end of the child left behind", func() bool { return hasEnded(child) })
}

func TestOutputOpenInEscapedProcessDoesNotBlockExit(t *testing.T) {
	lines := make(chan string, 1)
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", `setsid sleep 600 & echo $!; exec sleep 600`),
		Output: sendFirstLine(lines),
	})
	child, err := strconv.Atoi(<-lines)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
	// The child leaves the process group when it becomes a session leader.
	eventually(t, "a new session", func() bool { group, err := syscall.Getpgid(child); return err != nil || group == child })
	if e := p.Stop(contextWithTimeout(t, 10*time.Second)); e.Reason != Stopped {
		t.Errorf("Exit = %+v", e)
	}
}

func TestEnvoyDiesWithItsOwner(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "envoy.yaml"), []byte(staticBootstrap), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
	}{
		{"a real Envoy", append([]string{testenv.Envoy(t)}, Options{ConfigPath: "envoy.yaml"}.Args()...)},
		{"one that ignores signals", []string{script(t, dir, "envoy", "trap '' TERM INT HUP; while :; do sleep 1; done")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := helper(t, "owner", c.args...)
			cmd.Dir = dir
			pid, err := strconv.Atoi(readLine(t, cmd))
			if err != nil {
				t.Fatal(err)
			}
			if hasEnded(pid) {
				t.Fatal("the Envoy ended before its owner")
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Envoy's end", func() bool { return hasEnded(pid) })
		})
	}
}

func TestEnvoyHasItsOwnProcessGroup(t *testing.T) {
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", "exec sleep 600")})
	if group, err := syscall.Getpgid(p.PID()); err != nil || group != p.PID() {
		t.Errorf("process group %d, %v; want %d", group, err, p.PID())
	}
}

func TestFailedStartReportsWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	var missing *NotFoundError
	if _, err := Start(Config{Path: filepath.Join(dir, "none")}); !errors.As(err, &missing) {
		t.Errorf("Start without a binary = %v, want a NotFoundError", err)
	}
	none := filepath.Join(dir, "no-dir")
	if _, err := Start(Config{Path: "/bin/true", Dir: none}); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("Start in a missing directory = %v, want an error that names it", err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("\x00"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(Config{Path: empty}); !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("Start of a file that is not a program = %v, want ENOEXEC", err)
	}
}

func TestStopMayBeCalledConcurrently(t *testing.T) {
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", "trap '' TERM; while :; do sleep 600; done")})
	var all sync.WaitGroup
	for _, ctx := range []context.Context{t.Context(), contextWithTimeout(t, 20*time.Millisecond), t.Context()} {
		all.Go(func() {
			if e := p.Stop(ctx); e.Reason != Stopped {
				t.Errorf("Stop = %+v", e)
			}
		})
	}
	all.Wait()
}

// If a signal that Stop did not send ends Envoy during Stop, this is reported as a crash.
func TestCrashDuringStopIsReportedAsCrash(t *testing.T) {
	ready := make(chan string, 1)
	p := start(t, Config{
		Path:   script(t, t.TempDir(), "envoy", `ulimit -c 0; trap 'kill -SEGV $$' TERM; echo ready; sleep 600 & wait`),
		Output: sendFirstLine(ready),
	})
	<-ready
	if e := p.Stop(contextWithTimeout(t, 10*time.Second)); e.Reason != Signaled || e.Signal != syscall.SIGSEGV {
		t.Errorf("Exit = %+v, want signaled by SIGSEGV", e)
	}
}

func TestConfiguredEnvironmentReachesEnvoy(t *testing.T) {
	p := start(t, Config{Path: script(t, t.TempDir(), "envoy", "env"), Env: []string{"ONLY=this", "PATH=" + os.Getenv("PATH")}})
	if e := p.Exit(); !slices.Contains(e.Tail, "ONLY=this") || slices.ContainsFunc(e.Tail, func(l string) bool { return strings.HasPrefix(l, "HOME=") }) {
		t.Errorf("environment = %q", e.Tail)
	}
}
