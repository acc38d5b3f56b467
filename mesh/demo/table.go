package demo

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
)

// table is a check.Report that prints one row for each completed check. On a terminal, it also shows the running check,
// colours the check marks, and wraps long evidence. In a file or pipe, each row is a single line.
type table struct {
	out      io.Writer
	terminal bool
	colours  bool
	columns  int // width of the terminal
}

func newTable(out io.Writer, terminal bool) *table {
	out = termtext.Raw(out) // End already escapes the evidence
	t := &table{out: out, terminal: terminal, colours: terminal && os.Getenv("NO_COLOR") == ""}
	if f, ok := out.(*os.File); ok && terminal {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			t.columns = columns
		}
	}
	return t
}

// indent returns the column in which the evidence starts.
func (t *table) indent() int { return check.NameWidth() + 5 }

func (t *table) head() {
	fmt.Fprintf(t.out, "%-*s     EVIDENCE\n", check.NameWidth(), "CHECK")
}

// Begin shows the name of the running check on a terminal.
func (t *table) Begin(name string) {
	if t.terminal {
		fmt.Fprintf(t.out, "\r\x1b[K%-*s  …", check.NameWidth(), name)
	}
}

// End prints the row of the completed check.
func (t *table) End(r check.Result) {
	if t.terminal {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
	mark, colour := "✓", "\x1b[32m"
	if !r.OK {
		mark, colour = "✗", "\x1b[31m"
	}
	if t.colours {
		mark = colour + mark + "\x1b[0m"
	}
	evidence := termtext.Escape(strings.Join(strings.Fields(r.Evidence), " "))
	fmt.Fprintf(t.out, "%-*s  %s  %s\n", check.NameWidth(), r.Check, mark, fold(evidence, t.indent(), t.columns))
}

// fold wraps text between words so that a line has at most this number of columns. 0 disables wrapping.
func fold(text string, indent, columns int) string {
	room := columns - indent
	if columns == 0 || room < 30 {
		return text
	}
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= room:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return strings.Join(append(lines, line), "\n"+strings.Repeat(" ", indent))
}
