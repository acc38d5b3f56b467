package terminal

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pilotfish-mesh/pilotfish/internal/termtext"
)

const (
	// gap is the number of spaces between columns.
	gap = 2
	// maxWord is the maximum width of words that are shown undivided by hiding optional columns. Longer words are
	// divided.
	maxWord = 24
)

// Table is a table whose columns are aligned. On a terminal that is too narrow, it wraps cells within their columns. If
// this is not sufficient, it hides columns without values and then optional columns, and names them in a line after the
// table.
type Table struct {
	format   Format
	titles   []string
	optional []string
	rows     []row
}

type row struct {
	cells   []string
	colours map[int]Colour
}

// NewTable returns a table with these column titles. Without titles, the table has as many columns as its longest row.
func (f Format) NewTable(titles ...string) *Table { return &Table{format: f, titles: titles} }

// SetOptional sets the titles of the columns that may be hidden. The first is hidden first.
func (t *Table) SetOptional(titles ...string) *Table {
	t.optional = titles
	return t
}

// AddRow adds a row. The table escapes the cells, and shows an empty cell below a title as a dash. A cell that consists
// of a mark, such as ✓, has the colour of the mark.
func (t *Table) AddRow(cells ...string) {
	r := row{cells: make([]string, len(cells)), colours: map[int]Colour{}}
	for i, cell := range cells {
		if cell == "" && i < len(t.titles) && t.titles[i] != "" {
			cell = "-"
		}
		r.cells[i] = termtext.Escape(cell)
		r.colours[i] = markColours[cell]
	}
	t.rows = append(t.rows, r)
}

// PaintCell sets the colour of a cell in the last row.
func (t *Table) PaintCell(column int, colour Colour) { t.rows[len(t.rows)-1].colours[column] = colour }

// Write writes the table to the terminal, file or pipe of out.
func (t *Table) Write(out io.Writer) error {
	columns, hidden := t.layOut()
	var b strings.Builder
	if len(t.titles) > 0 {
		title := row{cells: t.titles, colours: map[int]Colour{}}
		for i := range t.titles {
			title.colours[i] = Bold
		}
		t.writeRow(&b, columns, title)
	}
	for _, r := range t.rows {
		t.writeRow(&b, columns, r)
	}
	if len(hidden) > 0 {
		b.WriteString(t.format.Wrap(fmt.Sprintf("(columns that do not fit: %s)\n", strings.Join(hidden, ", "))))
	}
	_, err := io.WriteString(termtext.Raw(out), b.String())
	return err
}

func (t *Table) writeRow(b *strings.Builder, columns []column, r row) {
	parts, height := make([][]string, len(columns)), 0
	for i, c := range columns {
		if c.index < len(r.cells) {
			parts[i] = wrapCell(r.cells[c.index], c.width)
		}
		height = max(height, len(parts[i]))
	}
	for line := range height {
		spaces := 0 // the number of spaces to write before the next text
		for i, c := range columns {
			text := ""
			if line < len(parts[i]) {
				text = parts[i][line]
			}
			if text != "" {
				b.WriteString(strings.Repeat(" ", spaces) + t.format.Paint(r.colours[c.index], text))
				spaces = 0
			}
			spaces += c.width - utf8.RuneCountInString(text) + gap
		}
		b.WriteByte('\n')
	}
}

// column is a shown column.
type column struct {
	index        int // the index of its cell in a row
	title        string
	piece        int // the minimum width with which words are divided only after punctuation
	word         int // the width with which no word of up to maxWord characters is divided
	natural      int // the minimum width with which no cell is wrapped
	width        int
	withoutValue bool // each cell is a dash
}

// layOut returns the shown columns with their widths, and the titles of the hidden ones.
func (t *Table) layOut() (columns []column, hidden []string) {
	columns = t.measure()
	available := t.format.Columns
	if available == 0 || totalWidth(columns, naturalWidth) <= available {
		setWidths(columns, naturalWidth)
		return columns, nil
	}
	for _, c := range t.hideOrder(columns) {
		if totalWidth(columns, wordWidth) <= available {
			break
		}
		columns = slices.DeleteFunc(columns, func(o column) bool { return o.index == c.index })
		hidden = append(hidden, c.title)
	}
	floor := func(column) int { return 1 }
	for _, width := range []func(column) int{pieceWidth, wordWidth} {
		if totalWidth(columns, width) <= available {
			floor = width
		}
	}
	distribute(columns, available, floor)
	return columns, hidden
}

func (t *Table) measure() []column {
	n := len(t.titles)
	for _, r := range t.rows {
		n = max(n, len(r.cells))
	}
	columns := make([]column, n)
	for i := range columns {
		c := column{index: i, withoutValue: len(t.rows) > 0}
		if i < len(t.titles) {
			c.title = t.titles[i]
			c.natural = utf8.RuneCountInString(c.title)
			c.piece, c.word = c.natural, c.natural
		}
		for _, r := range t.rows {
			if i >= len(r.cells) {
				continue
			}
			c.natural = max(c.natural, utf8.RuneCountInString(r.cells[i]))
			for _, word := range strings.Fields(r.cells[i]) {
				c.word = max(c.word, min(maxWord, utf8.RuneCountInString(word)))
				for _, piece := range splitPieces(word) {
					c.piece = max(c.piece, min(maxWord, utf8.RuneCountInString(piece)))
				}
			}
			c.withoutValue = c.withoutValue && r.cells[i] == "-"
		}
		columns[i] = c
	}
	return columns
}

// hideOrder returns the columns that may be hidden: those without a value, then the optional ones.
func (t *Table) hideOrder(columns []column) []column {
	var order []column
	for _, c := range columns {
		if c.withoutValue && c.title != "" {
			order = append(order, c)
		}
	}
	for _, title := range t.optional {
		for _, c := range columns {
			if c.title == title && !c.withoutValue {
				order = append(order, c)
			}
		}
	}
	return order
}

func naturalWidth(c column) int { return c.natural }

func wordWidth(c column) int { return c.word }

func pieceWidth(c column) int { return c.piece }

// totalWidth returns the width of all columns and of the gaps between them.
func totalWidth(columns []column, width func(column) int) int {
	total := gap * (len(columns) - 1)
	for _, c := range columns {
		total += width(c)
	}
	return total
}

func setWidths(columns []column, width func(column) int) {
	for i, c := range columns {
		columns[i].width = width(c)
	}
}

// distribute reduces the widths of the columns so that they fit into available. A column is at least floor(column)
// wide. All wrapped columns above this minimum have the same width, but the first of them are one wider if space is
// left.
func distribute(columns []column, available int, floor func(column) int) {
	for level := available; level > 0; level-- {
		setWidths(columns, func(c column) int { return min(c.natural, max(floor(c), level)) })
		if totalWidth(columns, func(c column) int { return c.width }) <= available {
			break
		}
	}
	left := available - totalWidth(columns, func(c column) int { return c.width })
	for i, c := range columns {
		if left > 0 && c.width < c.natural {
			columns[i].width++
			left--
		}
	}
}

// wrapCell divides the text of a cell into lines of at most width characters, after spaces and punctuation where
// possible.
func wrapCell(text string, width int) []string {
	width = cmp.Or(max(width, 0), 1)
	var lines []string
	line := ""
	for _, piece := range splitPieces(text) {
		for utf8.RuneCountInString(line)+utf8.RuneCountInString(strings.TrimRight(piece, " ")) > width {
			if line != "" {
				lines, line = append(lines, strings.TrimRight(line, " ")), ""
				continue
			}
			runes := []rune(piece)
			lines, piece = append(lines, string(runes[:width])), string(runes[width:])
		}
		if line == "" {
			piece = strings.TrimLeft(piece, " ")
		}
		line += piece
	}
	return append(lines, strings.TrimRight(line, " "))
}

// splitPieces divides text after each space and each punctuation character.
func splitPieces(text string) []string {
	var pieces []string
	start := 0
	for i, r := range text {
		if strings.ContainsRune(" ,;:/|=&?.-_~", r) {
			end := i + utf8.RuneLen(r)
			pieces = append(pieces, text[start:end])
			start = end
		}
	}
	if start < len(text) || len(pieces) == 0 {
		pieces = append(pieces, text[start:])
	}
	return pieces
}
