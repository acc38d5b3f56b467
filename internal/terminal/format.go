// Package terminal formats the output of commands for a terminal: colours, tables and lines that fit its width. Output
// to a file or a pipe has no colours and no limit of its width.
package terminal

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

// Colour is the escape sequence that selects a colour or a weight.
type Colour string

// Colours of messages. Red is for failures, Amber for warnings, Green for success.
const (
	Plain Colour = ""
	Bold  Colour = "\x1b[1m"
	Dim   Colour = "\x1b[2m"
	Red   Colour = "\x1b[31m"
	Green Colour = "\x1b[32m"
	Amber Colour = "\x1b[33m"
)

const reset = "\x1b[0m"

// Format describes how output is formatted. The zero value is the format for files and pipes.
type Format struct {
	// Colours enables colours.
	Colours bool
	// Columns is the width of the terminal. 0 means that the width is unlimited.
	Columns int
}

// Detect returns the format for out. Colours are disabled by the variable NO_COLOR and for the terminal type "dumb".
func Detect(out io.Writer) Format {
	f, ok := terminalFile(out)
	if !ok {
		return Format{}
	}
	format := Format{Colours: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
		format.Columns = columns
	}
	return format
}

// IsTerminal reports whether out is a terminal.
func IsTerminal(out io.Writer) bool {
	_, ok := terminalFile(out)
	return ok
}

func terminalFile(out io.Writer) (f *os.File, ok bool) {
	f, ok = termtext.Raw(out).(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// Paint returns text in a colour if colours are enabled.
func (f Format) Paint(colour Colour, text string) string {
	if !f.Colours || colour == Plain || text == "" {
		return text
	}
	return string(colour) + text + reset
}

// markColours are the colours of the marks for success, failure, warning and progress.
var markColours = map[string]Colour{"✓": Green, "✗": Red, "!": Amber, "…": Dim}

// PaintMark returns a mark in its colour. Other text is returned unchanged.
func (f Format) PaintMark(mark string) string { return f.Paint(markColours[mark], mark) }

// WriteText writes text to the terminal, file or pipe of out. It wraps lines between words if they are wider than the
// terminal. Apart from colours, the text must already be escaped.
func (f Format) WriteText(out io.Writer, text string) error {
	_, err := io.WriteString(termtext.Raw(out), f.Wrap(text))
	return err
}

// Wrap wraps the lines of text between words if they are wider than the terminal. The continuation of a line is
// indented by two more spaces than the line.
func (f Format) Wrap(text string) string {
	if f.Columns == 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, end := strings.CutSuffix(line, "\n")
		b.WriteString(wrapLine(body, f.Columns, leadingSpaces(body)+2))
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// WrapWords joins the words of a text by spaces, and wraps them for a column of the terminal that begins after indent
// columns. If fewer than 30 columns are left for the text, WrapWords does not wrap it.
func (f Format) WrapWords(text string, indent int) string {
	text = strings.Join(strings.Fields(text), " ")
	if f.Columns == 0 || f.Columns-indent < 30 {
		return text
	}
	return strings.TrimLeft(wrapLine(strings.Repeat(" ", indent)+text, f.Columns, indent), " ")
}

// wrapLine wraps a line between words. The lines after the first are indented by indent columns, but at most by half of
// the width.
func wrapLine(line string, columns, indent int) string {
	if width(line) <= columns {
		return line
	}
	next := "\n" + strings.Repeat(" ", min(indent, columns/2))
	var b strings.Builder
	used, begun := 0, false // begun: the current line contains a word
	for rest := line; rest != ""; {
		spaces := leadingSpaces(rest)
		word, _, _ := strings.Cut(rest[spaces:], " ")
		rest = rest[spaces+len(word):]
		if begun && used+spaces+width(word) > columns {
			b.WriteString(next + word)
			used = len(next) - 1 + width(word)
			continue
		}
		b.WriteString(strings.Repeat(" ", spaces) + word)
		used += spaces + width(word)
		begun = begun || word != ""
	}
	return b.String()
}

func leadingSpaces(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }

// width returns the number of columns that text occupies. Colours occupy none.
func width(text string) int {
	n := utf8.RuneCountInString(text)
	for {
		_, after, found := strings.Cut(text, "\x1b[")
		sequence, rest, ends := strings.Cut(after, "m")
		if !found || !ends {
			return n
		}
		n -= len("\x1b[") + len(sequence) + len("m")
		text = rest
	}
}
