package early

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// begun is what the runtime says of itself, once in each program of Go that begins.
func begun(trace string) int { return strings.Count(trace, "init runtime @") }

// run starts the program with the arguments, its own name the first, and gives what it said and how many programs of Go began.
func run(t *testing.T, path string, args ...string) (said string, programs int) {
	t.Helper()
	var out, trace bytes.Buffer
	cmd := exec.Command(path)
	cmd.Args, cmd.Stdout, cmd.Stderr = args, &out, &trace
	cmd.Env = []string{"GODEBUG=inittrace=1", "TOLD=told"}
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v: %s", args, err, trace.String())
	}
	return out.String(), begun(trace.String())
}

func TestTheKernelStartsTheSmallBinary(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	agent := filepath.Join(dir, "pilotfish-agent")
	build := exec.Command("go", "build", "-ldflags", "-E github.com/pilotfish-mesh/pilotfish/cmd/pilotfish-agent/early.entry", "-o", agent, "./testdata/program")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	alone, beside := agent, filepath.Join(dir, "both", "pilotfish-agent")
	if err := os.Mkdir(filepath.Dir(beside), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{beside, filepath.Join(filepath.Dir(beside), small)} {
		if err := os.WriteFile(path, program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		line     string
		programs int // that begin; 1 is the small binary without the agent, or the agent alone
		small    bool
	}{
		{"pilotfish-agent iptables", 1, true},
		{"pilotfish-agent iptables -b * --dual-stack", 1, true},
		{"pilot-agent istio-iptables -p 1", 1, true},
		{"istio-iptables -p 1", 2, true}, // left to the init
		{"pilotfish-agent", 1, false},
		{"pilotfish-agent iptable", 1, false},
		{"pilotfish-agent iptables2", 1, false},
		{"pilotfish-agent istio-iptablet", 1, false},
		{"pilotfish-agent istio-iptables-", 1, false},
		{"pilotfish-agent istio-i", 1, false},
		{"pilotfish-agent proxy iptables", 1, false},
	} {
		args := strings.Fields(c.line)
		rest, is := redirection(args)
		if is != c.small {
			t.Fatalf("%q: the init hands over: %v", c.line, is)
		}
		want := args
		if c.small {
			want = append([]string{small}, rest...)
		}
		if said, programs := run(t, beside, args...); said != fmt.Sprintf("%q told", want) || programs != c.programs {
			t.Errorf("%q: %s, after %d programs", c.line, said, programs)
		}
		// Without a small binary the agent goes on, with the arguments as they were.
		if said, programs := run(t, alone, args...); said != fmt.Sprintf("%q told", args) || programs != 1 {
			t.Errorf("%q, nothing beside: %s, after %d programs", c.line, said, programs)
		}
	}
	// Neither an empty argument nor one as long as there can be is anything else.
	for _, odd := range []string{"", strings.Repeat("iptables", 10000)} {
		if said, programs := run(t, beside, "pilotfish-agent", odd); said != fmt.Sprintf("%q told", []string{"pilotfish-agent", odd}) || programs != 1 {
			t.Errorf("%.20q: %.100s, after %d programs", odd, said, programs)
		}
	}
}

func TestTheAgentAsItIsBuiltBeginsNoRuntimeForTheCommand(t *testing.T) {
	if said, programs := run(t, testenv.Bin(t, "pilotfish-agent"), "pilotfish-agent", "iptables", "--help"); programs != 1 || !strings.Contains(said, "istio-iptables") {
		t.Errorf("%d programs began, which said:\n%s", programs, said)
	}
}
