package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrNoEOF is the error of an OpenMetrics source that does not say that it is whole.
var ErrNoEOF = errors.New("it broke off: there is no # EOF at its end")

// TooMuchError is the error of a source that has more than is taken from it.
type TooMuchError struct {
	What string
}

func (e *TooMuchError) Error() string { return "it has more than " + e.What + "; the rest is left out" }

// Limits bound what is taken from a source; 0 is no bound.
type Limits struct {
	Bytes    int64
	Families int
}

// visitor gets what a source consists of.
type visitor interface {
	// open begins a family, before its first sample. Only what is opened gets samples.
	open(*family)
	// sample is one value of the family that was opened last; suffix is what it adds to the family's name.
	sample(s *sample, suffix string) (taken bool)
	// verbatim takes whole lines of the family that was opened last from the beginning of a text, as far as it knows them
	// to be valid, and gives how many bytes they are.
	verbatim(text []byte, f *family) (taken int)
	// end closes the last family.
	end()
}

// reader takes a source apart.
type reader struct {
	in     *lines
	format Format
	visit  visitor
	most   Limits
	cut    Cut
	opens  int // families so far
	line   sample

	head    family // what is described, or was opened
	known   bool   // there is a head
	opened  bool
	invalid int
	whole   bool // # EOF was there

	before []string // beginnings of names before which to wait
	held   []byte   // the line before which it waits
	done   bool     // all was read that will be, and over says why no more
	over   error
}

// errWaits is why reading ended before a family; it goes on when read is called again.
var errWaits = errors.New("it waits before a family")

func (r *reader) read() error {
	if !r.done {
		r.over = r.rest()
		r.done = !errors.Is(r.over, errWaits)
	}
	return r.over
}

func (r *reader) rest() error {
	for {
		line, ok := r.next()
		if !ok {
			break
		}
		if err := r.one(line); err != nil {
			if !errors.Is(err, errWaits) {
				r.close()
			}
			return err
		}
		if r.whole {
			break
		}
		if r.opened {
			r.in.skip(r.visit.verbatim(r.in.ahead(), &r.head))
		}
	}
	r.close()
	if err := r.in.failure(); err != nil && !r.whole {
		return err
	}
	if r.format == OpenMetrics && !r.whole {
		return ErrNoEOF
	}
	return nil
}

func (r *reader) next() ([]byte, bool) {
	if held := r.held; held != nil {
		r.held = nil
		return held, true
	}
	return r.in.next()
}

func (r *reader) close() {
	if r.opened {
		r.visit.end()
	}
	r.known, r.opened = false, false
}

// one handles one line.
func (r *reader) one(line []byte) error {
	start := blanks(line, 0)
	if start == len(line) {
		return nil
	}
	if line[start] == '#' {
		r.comment(line[start+1:])
		return nil
	}
	cut := r.cut.of(line[start:])
	if !r.line.parse(line[start+cut:], r.format) {
		r.invalid++
		return nil
	}
	suffix, ok := "", false
	if r.known {
		suffix, ok = r.head.owns(r.line.text(r.line.name))
	}
	if !ok {
		r.close()
		r.head, r.known = family{name: string(r.line.text(r.line.name)), cut: cut, plain: true}, true
	}
	if !r.opened {
		if r.waits(r.head.name) {
			r.held = line
			return errWaits
		}
		if r.opens++; r.most.Families > 0 && r.opens > r.most.Families {
			return &TooMuchError{fmt.Sprintf("%d families", r.most.Families)}
		}
		r.opened = true
		r.visit.open(&r.head)
	}
	if !r.visit.sample(&r.line, suffix) {
		r.invalid++
	}
	return nil
}

func (r *reader) waits(name string) bool {
	return slices.ContainsFunc(r.before, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// comment reads a line that describes a family. What describes none, or says again what was said, is dropped.
func (r *reader) comment(line []byte) {
	at := blanks(line, 0)
	end := tokenEnd(line, at)
	keyword := string(line[at:min(end, at+8)])
	if keyword == "EOF" && r.format == OpenMetrics {
		r.whole = true
		return
	}
	if keyword != "HELP" && keyword != "TYPE" && (keyword != "UNIT" || r.format != OpenMetrics) {
		return
	}
	at = blanks(line, end)
	end = nameEnd(line, at)
	if end == at || (end < len(line) && line[end] != ' ' && line[end] != '\t') {
		r.invalid++
		return
	}
	name, rest := line[at:end], line[blanks(line, end):]
	cut := r.cut.of(name)
	r.describe(keyword, name[cut:], rest)
	r.head.cut = cut
}

func (r *reader) describe(keyword string, name, rest []byte) {
	same := r.known && r.head.header == string(name)
	switch {
	case same && r.opened:
		return // said too late, or again
	case !same:
		r.close()
		named := string(name)
		r.head, r.known = family{name: named, header: named, plain: true}, true
	}
	f := &r.head
	switch keyword {
	case "TYPE":
		k, ok := kindOf(rest[:tokenEnd(rest, 0)])
		if !ok {
			r.invalid++
		}
		if !f.typed {
			typed := newFamily(f.header, k, r.format)
			typed.help, typed.helped, typed.unit = f.help, f.helped, f.unit
			*f = typed
		}
	case "HELP":
		if !f.helped {
			f.help, f.helped = cleanHelp(rest), true
		}
	case "UNIT":
		f.unit = string(rest)
	}
}

// cleanHelp gives the text of a HELP line with escapes that all readers know: \\ and \n. In OpenMetrics a quote is escaped
// too; writing sees to that.
func cleanHelp(text []byte) string {
	if len(text) > longestHelp {
		text = text[:longestHelp]
	}
	if utf8.Valid(text) && bytes.IndexByte(text, '\\') < 0 {
		return string(text)
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] != '\\':
			b.WriteByte(text[i])
		case i+1 < len(text) && (text[i+1] == '\\' || text[i+1] == 'n'):
			b.Write(text[i : i+2])
			i++
		case i+1 < len(text) && text[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			b.WriteString(`\\`)
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

const longestHelp = 8 << 10
