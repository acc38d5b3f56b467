package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

func init() { scriptCommands["terminal"] = runOnTerminal }

var colourSequence = regexp.MustCompile("\x1b\\[[0-9;]*m")

// runOnTerminal runs a command on a terminal with this width, and checks that no line is wider, and that the output
// matches: `terminal 80 REGEXP pilotfish status`. The exit status of the command is ignored.
func runOnTerminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: terminal COLUMNS REGEXP COMMAND [ARGUMENT…]")
	}
	columns, err := strconv.Atoi(args[0])
	ts.Check(err)
	output := readTerminal(ts, columns, args[2:])
	ts.Logf("%s", output)
	if !regexp.MustCompile(args[1]).MatchString(output) {
		ts.Fatalf("on a terminal, %s does not print %s:\n%q", strings.Join(args[2:], " "), args[1], output)
	}
	for line := range strings.Lines(colourSequence.ReplaceAllString(output, "")) {
		if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > columns {
			ts.Fatalf("on a terminal with %d columns, %s prints a line with %d: %s", columns, strings.Join(args[2:], " "), utf8.RuneCountInString(line), line)
		}
	}
}

func readTerminal(ts *testscript.TestScript, columns int, args []string) string {
	screen, tty := openTerminal(ts)
	defer screen.Close()
	ts.Check(unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: uint16(columns)}))
	cmd := exec.Command(filepath.Join(filepath.SplitList(ts.Getenv("PATH"))[0], args[0]), args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Stdout, cmd.Stderr = tty, tty
	for _, name := range []string{"PATH", "HOME", "XDG_RUNTIME_DIR", "ENVOY_PATH", "NO_COLOR"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	cmd.Env = append(cmd.Env, "TERM=xterm")
	ts.Check(cmd.Start())
	ts.Check(tty.Close())
	var output bytes.Buffer
	_, _ = output.ReadFrom(screen) // ends with EIO when the program has closed the terminal
	if _, failed := cmd.Wait().(*exec.ExitError); !failed {
		ts.Check(cmd.Err)
	}
	return strings.ReplaceAll(output.String(), "\r\n", "\n")
}

func openTerminal(ts *testscript.TestScript) (screen, tty *os.File) {
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	ts.Check(err)
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	ts.Check(err)
	ts.Check(unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0))
	tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	ts.Check(err)
	return screen, tty
}
