package demo

import (
	"fmt"
	"io"
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/terminal"
	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
	"github.com/pilotfish-mesh/pilotfish/mesh/demo/check"
)

// table is a check.Report that prints one row for each completed check. On a terminal, it also shows the running check,
// colours the check marks, and wraps long evidence. In a file or pipe, each row is a single line.
type table struct {
	out        io.Writer
	format     terminal.Format
	isTerminal bool
}

func newTable(out io.Writer) *table {
	return &table{out: termtext.Raw(out), format: terminal.Detect(out), isTerminal: terminal.IsTerminal(out)} // End already escapes the evidence
}

// indent returns the column in which the evidence starts.
func (t *table) indent() int { return check.NameWidth() + 5 }

func (t *table) head() {
	fmt.Fprintf(t.out, "%-*s     EVIDENCE\n", check.NameWidth(), "CHECK")
}

// Begin shows the name of the running check on a terminal.
func (t *table) Begin(name string) {
	if t.isTerminal {
		fmt.Fprintf(t.out, "\r\x1b[K%-*s  …", check.NameWidth(), name)
	}
}

// End prints the row of the completed check.
func (t *table) End(r check.Result) {
	if t.isTerminal {
		fmt.Fprint(t.out, "\r\x1b[K")
	}
	mark := "✓"
	if !r.OK {
		mark = "✗"
	}
	evidence := termtext.Escape(strings.Join(strings.Fields(r.Evidence), " "))
	fmt.Fprintf(t.out, "%-*s  %s  %s\n", check.NameWidth(), r.Check, t.format.PaintMark(mark), t.format.WrapWords(evidence, t.indent()))
}
