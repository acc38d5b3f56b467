package termtext

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

var texts = map[string]struct{ in, line, lines string }{
	"plain text":                   {"reviews-v1 ✓ ürün 日本", "reviews-v1 ✓ ürün 日本", "reviews-v1 ✓ ürün 日本"},
	"nothing":                      {"", "", ""},
	"colour":                       {"a\x1b[31mb", `a\u001b[31mb`, `a\u001b[31mb`},
	"window title":                 {"\x1b]0;x\a", `\u001b]0;x\u0007`, `\u001b]0;x\u0007`},
	"control sequence of one byte": {"a\u009b2J", `a\u009b2J`, `a\u009b2J`},
	"invalid UTF-8":                {"a\x9b2J\xff", `a\x9b2J\xff`, `a\x9b2J\xff`},
	"a character that is cut off":  {"a\xe2\x80", `a\xe2\x80`, `a\xe2\x80`},
	"end of a line":                {"a\r\nb\tc", `a\r\nb\tc`, `a\r` + "\nb\tc"},
	"delete and backspace":         {"a\x7fb\b", `a\u007fb\u0008`, `a\u007fb\u0008`},
	"reversed text":                {"a\u202eb\u2066c\u200f", `a\u202eb\u2066c\u200f`, `a\u202eb\u2066c\u200f`},
	"line separators":              {"a\u2028b\u2029", `a\u2028b\u2029`, `a\u2028b\u2029`},
	"invisible tags":               {"a\U000e0041", `a\U000e0041`, `a\U000e0041`},
	"spaces that are not seen":     {"pay\u200bments\ufeff", `pay\u200bments\ufeff`, `pay\u200bments\ufeff`},
}

func TestUnsafeCharactersBecomeVisible(t *testing.T) {
	for name, c := range texts {
		if got := Escape(c.in); got != c.line {
			t.Errorf("%s: a line is %q, want %q", name, got, c.line)
		}
		if got := EscapeLines(c.in); got != c.lines {
			t.Errorf("%s: lines are %q, want %q", name, got, c.lines)
		}
	}
}

func TestWriterEscapesWhateverTheWritesAre(t *testing.T) {
	for name, c := range texts {
		for size := 1; size <= len(c.in); size++ {
			var out bytes.Buffer
			w := NewWriter(&out)
			for at := 0; at < len(c.in); at += size {
				part := c.in[at:min(at+size, len(c.in))]
				if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			want := c.lines
			if name == "a character that is cut off" {
				want = "a" // the rest of the character may follow in the next write
			}
			if out.String() != want {
				t.Errorf("%s in writes of %d bytes: %q, want %q", name, size, out.String(), want)
			}
		}
	}
}

func TestWriterLeavesTheMeaningOfJSON(t *testing.T) {
	in := map[string]string{"name": "a\x1b[2J\u202e\u009b\x7f\n"}
	var out bytes.Buffer
	if err := json.NewEncoder(NewWriter(&out)).Encode(in); err != nil {
		t.Fatal(err)
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["name"] != in["name"] || strings.ContainsAny(out.String(), "\x1b\u202e\u009b\x7f") {
		t.Errorf("got %q: %v, %v", out.String(), back, err)
	}
}

func TestMessagesBecomeOneLine(t *testing.T) {
	if got := OneLine("a\r\nb\n\tc\x1b"); got != `a b  c\u001b` {
		t.Errorf("got %q", got)
	}
}

func TestRawIsTheWriterBehind(t *testing.T) {
	var out bytes.Buffer
	if Raw(NewWriter(&out)) != &out || Raw(&out) != &out {
		t.Error("another writer")
	}
}
