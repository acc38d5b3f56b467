// Package termtext makes text safe to print on a terminal. With it, names and messages from untrusted sources cannot
// move the cursor, change colours, forge lines or reverse the direction of text.
package termtext

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Escape returns text as one line. It replaces unprintable characters by visible escapes such as \u001b. These are
// control characters, bidirectional controls, invisible characters, line separators and invalid UTF-8.
func Escape(text string) string {
	safe, _ := escape(text, false, true)
	return safe
}

// EscapeLines is like Escape for text of several lines, but does not escape line feeds and tabs.
func EscapeLines(text string) string {
	safe, _ := escape(text, true, true)
	return safe
}

// OneLine is like Escape for messages, but replaces line ends and tabs by spaces.
func OneLine(text string) string { return Escape(lineEnds.Replace(text)) }

var lineEnds = strings.NewReplacer("\r\n", " ", "\n", " ", "\t", " ")

// escape escapes unprintable characters. lines allows line feeds and tabs. If complete is false and the text ends
// within a UTF-8 character, the bytes of that character are returned as rest.
func escape(text string, lines, complete bool) (safe, rest string) {
	var b strings.Builder
	start := 0 // text[start:] is not in b yet
	for at := 0; at < len(text); {
		c := text[at]
		if c >= ' ' && c < 0x7f || lines && (c == '\n' || c == '\t') {
			at++
			continue
		}
		r, size := utf8.DecodeRuneInString(text[at:])
		if r == utf8.RuneError && size == 1 {
			if !complete && !utf8.FullRuneInString(text[at:]) {
				return b.String() + text[start:at], text[at:]
			}
			b.WriteString(text[start:at] + fmt.Sprintf(`\x%02x`, c))
			start = at + size
		} else if !unicode.IsPrint(r) {
			b.WriteString(text[start:at] + escaped(r))
			start = at + size
		}
		at += size
	}
	if start == 0 {
		return text, ""
	}
	return b.String() + text[start:], ""
}

// escaped returns the escape for a character. Unless the character is above U+FFFF, the escape is also valid in JSON.
func escaped(r rune) string {
	switch r {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	if r > 0xffff {
		return fmt.Sprintf(`\U%08x`, r)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// Writer escapes the text that is written to it, as EscapeLines does. It is safe for concurrent use.
type Writer struct {
	out  io.Writer
	mu   sync.Mutex
	rest string // incomplete UTF-8 character at the end of the previous write
}

// NewWriter returns a Writer that writes to out.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Raw returns the writer to which a Writer writes. It is used for colours and for text that is already escaped. If out
// is not a Writer, Raw returns it.
func Raw(out io.Writer) io.Writer {
	if w, ok := out.(*Writer); ok {
		return w.out
	}
	return out
}

func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	safe, rest := escape(w.rest+string(p), true, false)
	w.rest = rest
	if _, err := io.WriteString(w.out, safe); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ShortLine joins the lines of a text to one line, and shortens it to 400 bytes.
func ShortLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 400 {
		text = strings.ToValidUTF8(text[:400], "") + "…"
	}
	return text
}
