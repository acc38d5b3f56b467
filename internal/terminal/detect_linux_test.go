package terminal

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestFormatIsThatOfTheTerminal(t *testing.T) {
	screen, tty := testenv.Terminal(t)
	defer tty.Close()
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 97}); err != nil {
		t.Fatal(err)
	}
	out := termtext.NewWriter(tty)
	for name, c := range map[string]struct {
		variable, value string
		want            Format
	}{
		"terminal":        {"TERM", "xterm", Format{Colours: true, Columns: 97}},
		"NO_COLOR":        {"NO_COLOR", "1", Format{Columns: 97}},
		"without colours": {"TERM", "dumb", Format{Columns: 97}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", "")
			t.Setenv("TERM", "xterm")
			t.Setenv(c.variable, c.value)
			if got := Detect(out); got != c.want || !IsTerminal(out) {
				t.Errorf("the format is %+v, want %+v", got, c.want)
			}
		})
	}
	if got := Detect(new(bytes.Buffer)); got != (Format{}) {
		t.Errorf("the format of a buffer is %+v", got)
	}
}
