package terminal

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

func writeTable(t *testing.T, table *Table) string {
	t.Helper()
	var out bytes.Buffer
	if err := table.Write(termtext.NewWriter(&out)); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func fillTable(f Format, rows int) *Table {
	table := f.NewTable("", "WORKLOAD", "ADDRESS", "CERTIFICATE", "CONFIG").SetOptional("ADDRESS")
	for i := range rows {
		table.AddRow("✓", fmt.Sprintf("reviews-v%d-replica-0", i), "240.240.0.10", "ns/shop-of-books/sa/bookshop-reviews, 23h59m left", "in sync")
	}
	return table
}

func TestTableInPipeIsAlignedAndNotCut(t *testing.T) {
	want := "   WORKLOAD              ADDRESS       CERTIFICATE                                        CONFIG\n" +
		"✓  reviews-v0-replica-0  240.240.0.10  ns/shop-of-books/sa/bookshop-reviews, 23h59m left  in sync\n"
	if got := writeTable(t, fillTable(Format{}, 1)); got != want {
		t.Errorf("the table is\n%s\nnot\n%s", got, want)
	}
}

func TestTableFitsEveryTerminal(t *testing.T) {
	for columns := 1; columns < 160; columns++ {
		text := writeTable(t, fillTable(Format{Columns: columns}, 3))
		for line := range strings.Lines(text) {
			if width := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); width > columns && columns >= 20 {
				t.Fatalf("with %d columns, a line has %d:\n%s", columns, width, text)
			}
		}
	}
}

// Each cell must remain readable: its parts are below each other in its column.
func TestWrappedCellsAreCompleteInTheirColumns(t *testing.T) {
	lines := strings.Split(writeTable(t, fillTable(Format{Columns: 80}, 1)), "\n")
	at := strings.Index(lines[0], "CERTIFICATE")
	end := strings.Index(lines[0], "CONFIG")
	if at < 0 || end < 0 {
		t.Fatalf("the titles are %q", lines[0])
	}
	var certificate string
	for _, line := range lines[1:] {
		runes := []rune(line)
		certificate += string(runes[min(at, len(runes)):min(end, len(runes))])
	}
	if got := strings.Join(strings.Fields(certificate), ""); got != "ns/shop-of-books/sa/bookshop-reviews,23h59mleft" {
		t.Errorf("the certificate is shown as %q in\n%s", got, strings.Join(lines, "\n"))
	}
}

func TestNarrowTerminalHidesOptionalColumns(t *testing.T) {
	for columns, want := range map[int]string{
		48: "NAME                ADDRESS             RESULT\naverylongnameofone  240.240.0.10:15006  accepted\n(columns that do not fit: EMPTY)\n",
		40: "NAME                RESULT\naverylongnameofone  accepted\n(columns that do not fit: EMPTY,\n  ADDRESS)\n",
	} {
		table := Format{Columns: columns}.NewTable("NAME", "EMPTY", "ADDRESS", "RESULT").SetOptional("ADDRESS")
		table.AddRow("averylongnameofone", "", "240.240.0.10:15006", "accepted")
		if got := writeTable(t, table); got != want {
			t.Errorf("with %d columns, the table is\n%s\nnot\n%s", columns, got, want)
		}
	}
}

func TestWordsAreDividedOnlyIfNoColumnCanBeHidden(t *testing.T) {
	table := Format{Columns: 40}.NewTable("NAME", "ADDRESS", "RESULT")
	table.AddRow("averylongnameofone", "240.240.0.10:15006", "accepted")
	want := "NAME                ADDRESS     RESULT\naverylongnameofone  240.240.0.  accepted\n                    10:15006\n"
	if got := writeTable(t, table); got != want {
		t.Errorf("the table is\n%s\nnot\n%s", got, want)
	}
}

func TestColoursDoNotChangeTheLayout(t *testing.T) {
	plain, coloured := fillTable(Format{Columns: 80}, 2), fillTable(Format{Columns: 80, Colours: true}, 2)
	coloured.PaintCell(4, Red)
	text := writeTable(t, coloured)
	for _, want := range []string{"\x1b[32m✓\x1b[0m", "\x1b[31min sync\x1b[0m", "\x1b[1mWORKLOAD\x1b[0m"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in %q", want, text)
		}
	}
	for _, c := range []Colour{Bold, Red, Green, reset} {
		text = strings.ReplaceAll(text, string(c), "")
	}
	if want := writeTable(t, plain); text != want {
		t.Errorf("without colours, the table is\n%s\nnot\n%s", text, want)
	}
}

func TestTableEscapesCells(t *testing.T) {
	table := Format{}.NewTable("NAME")
	table.AddRow("a\x1b[2J\u202eb\nc")
	if got := writeTable(t, table); got != "NAME\na\\u001b[2J\\u202eb\\nc\n" {
		t.Errorf("the table is %q", got)
	}
}

func TestLongLinesAreWrappedBetweenWords(t *testing.T) {
	f := Format{Columns: 20, Colours: true}
	for text, want := range map[string]string{
		"short\n":                              "short\n",
		"  reviews rejected the route\n\nnext": "  reviews rejected\n    the route\n\nnext",
		f.Paint(Red, "error") + " in this file of that":     "\x1b[31merror\x1b[0m in this file\n  of that",
		"a-word-that-is-longer-than-the-line x":             "a-word-that-is-longer-than-the-line\n  x",
		"name: " + f.Paint(Bold, "two words") + " and more": "name: \x1b[1mtwo words\x1b[0m and\n  more",
	} {
		if got := f.Wrap(text); got != want {
			t.Errorf("%q is wrapped to %q, not %q", text, got, want)
		}
	}
	if text := strings.Repeat("word ", 100); (Format{}).Wrap(text) != text {
		t.Error("a line in a pipe is wrapped")
	}
}

func TestCellsAreDividedAfterPunctuation(t *testing.T) {
	for _, c := range []struct {
		text  string
		width int
		want  []string
	}{
		{"outbound|9080|v1|reviews.shop.svc", 14, []string{"outbound|9080|", "v1|reviews.", "shop.svc"}},
		{"two words", 5, []string{"two", "words"}},
		{"abcdefgh", 3, []string{"abc", "def", "gh"}},
		{"", 3, []string{""}},
		{"ab  c", 2, []string{"ab", "c"}},
	} {
		if got := wrapCell(c.text, c.width); !slices.Equal(got, c.want) {
			t.Errorf("%q in %d columns is %q, not %q", c.text, c.width, got, c.want)
		}
	}
}
