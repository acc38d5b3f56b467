package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/mesh"
)

// The scripts in testdata contain commands as users type them; `pilotfish` in them is this test binary.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"pilotfish": main})
}

func TestScripts(t *testing.T) {
	envoy := testenv.Envoy(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			// The mesh's sockets need a shorter path than the script's own directory.
			runtime, err := os.MkdirTemp("/tmp", "pf")
			if err != nil {
				return err
			}
			e.Defer(func() { end(t, runtime) })
			e.Setenv("XDG_RUNTIME_DIR", runtime)
			e.Setenv("ENVOY_PATH", envoy)
			e.Setenv("PORT", strconv.Itoa(testenv.FreePort(t)))
			return nil
		},
		Cmds: scriptCommands,
	})
}

// scriptCommands are additional commands of the scripts.
var scriptCommands = map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits}

// end stops the meshes that a failed script left running.
func end(t *testing.T, runtime string) {
	dir := filepath.Join(runtime, "pilotfish")
	for _, name := range mesh.RunningMeshes(dir) {
		c, err := mesh.Connect(dir, name)
		if err == nil {
			err = c.Stop(context.Background())
			c.Close()
		}
		if err != nil {
			t.Errorf("mesh %s could not be stopped: %v", name, err)
		}
	}
	_ = os.RemoveAll(runtime)
}

// exits runs a command and checks its exit status: `exits 2 pilotfish status`. stdout and stderr match its output.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits STATUS COMMAND [ARGUMENT…]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if exit, ok := err.(*exec.ExitError); ok {
		got = strings.TrimPrefix(exit.Error(), "exit status ")
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != args[0] {
		ts.Fatalf("%s exits with %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

func TestHelpTextsFit80Columns(t *testing.T) {
	root, checked := newRoot(), 0
	commands := []*cobra.Command{root}
	for len(commands) > 0 {
		c := commands[0]
		commands = append(commands[1:], c.Commands()...)
		checked++
		for line := range strings.Lines(c.Long + "\n\n" + c.UsageString()) {
			if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > 80 && !strings.HasPrefix(line, "Use \"") {
				t.Errorf("%s --help: line longer than 80 columns: %s", c.CommandPath(), line)
			}
		}
		if first, _ := utf8.DecodeRuneInString(c.Short); !unicode.IsUpper(first) && !c.Hidden {
			t.Errorf("%s: the short description %q does not begin with a capital letter", c.CommandPath(), c.Short)
		}
	}
	if checked < 30 {
		t.Errorf("only %d commands were found", checked)
	}
}

func TestCommandsCompileForOtherSystems(t *testing.T) {
	for _, system := range []string{"darwin"} {
		build := exec.Command("go", "build", "-o", filepath.Join(t.TempDir(), "pilotfish"), ".")
		build.Env = append(os.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("for %s: %v\n%s", system, err, out)
		}
	}
}
