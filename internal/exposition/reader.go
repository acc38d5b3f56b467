package exposition

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrNoEOF is the error of an OpenMetrics source that does not end with the line "# EOF".
var ErrNoEOF = errors.New("the text is incomplete: it does not end with # EOF")

// LimitError is the error of a source that exceeds a limit.
type LimitError struct {
	What string
}

func (e *LimitError) Error() string { return "it has more than " + e.What + "; the rest was dropped" }

// Limits contains limits on the size of a source; 0 means no limit.
type Limits struct {
	Bytes    int64
	Families int
}

// visitor receives the parsed content of a source.
type visitor interface {
	// open begins a family. It is called before the family's first sample.
	open(*family)
	// sample handles a sample of the current family, and reports whether it is valid. suffix is the suffix that the
	// sample's name adds to the family's name.
	sample(s *sample, suffix string) (valid bool)
	// verbatim copies lines at the beginning of text that belong to the current family and are known to be valid. It
	// returns the number of bytes that it copied.
	verbatim(text []byte, f *family) (copied int)
	// end closes the current family.
	end()
}

// reader parses a source.
type reader struct {
	in     *lines
	format Format
	visit  visitor
	limits Limits
	cut    Cut
	opens  int // number of opened families
	// reserved contains name prefixes that the source must not use. refused is the number of families in the source
	// whose names have such a prefix.
	reserved    []string
	refused     int
	lastRefused string
	line        sample

	head    family // current family, from its HELP, TYPE or UNIT line or from its first sample
	known   bool   // head is set
	opened  bool
	invalid int
	whole   bool // the line "# EOF" was read

	before []string // prefixes of family names; reading pauses before such a family
	held   []byte   // the line before which reading paused
	done   bool     // reading has ended, and over is the result
	over   error
}

// errWaits is returned when reading pauses before a family. The next call of read continues.
var errWaits = errors.New("the copy is paused before a family")

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
		if err := r.readLine(line); err != nil {
			if !errors.Is(err, errWaits) {
				r.close()
			}
			return err
		}
		if r.whole {
			break
		}
		if r.opened {
			r.in.skip(r.visit.verbatim(r.in.buffered(), &r.head))
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

// readLine handles a comment or a sample. If a sample begins a family before which reading pauses, it returns errWaits.
func (r *reader) readLine(line []byte) error {
	start := skipBlanks(line, 0)
	if start == len(line) {
		return nil
	}
	if line[start] == '#' {
		r.parseComment(line[start+1:])
		return nil
	}
	cut := r.cut.cutLen(line[start:])
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
	if !r.opened && r.isReserved() {
		return nil
	}
	if !r.opened {
		if r.waits(r.head.name) {
			r.held = line
			return errWaits
		}
		if r.opens++; r.limits.Families > 0 && r.opens > r.limits.Families {
			return &LimitError{fmt.Sprintf("%d families", r.limits.Families)}
		}
		r.opened = true
		r.visit.open(&r.head)
	}
	if !r.visit.sample(&r.line, suffix) {
		r.invalid++
	}
	return nil
}

// isReserved reports whether the name of the current family is reserved. It counts each such family once. A family is
// also reserved if only the names of its samples have the prefix: a counter "istio" has samples "istio_total".
func (r *reader) isReserved() bool {
	name := r.head.name
	if !slices.ContainsFunc(r.reserved, func(prefix string) bool { return strings.HasPrefix(name+"_", prefix) }) {
		return false
	}
	if name != r.lastRefused {
		r.lastRefused = name
		r.refused++
	}
	return true
}

func (r *reader) waits(name string) bool {
	return slices.ContainsFunc(r.before, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// parseComment parses a HELP, TYPE or UNIT line, or the line "# EOF" of OpenMetrics. It drops other comments and
// repeated lines.
func (r *reader) parseComment(line []byte) {
	at := skipBlanks(line, 0)
	end := tokenEnd(line, at)
	keyword := string(line[at:min(end, at+8)])
	if keyword == "EOF" && r.format == OpenMetrics {
		r.whole = true
		return
	}
	if keyword != "HELP" && keyword != "TYPE" && (keyword != "UNIT" || r.format != OpenMetrics) {
		return
	}
	at = skipBlanks(line, end)
	end = nameEnd(line, at)
	if end == at || (end < len(line) && line[end] != ' ' && line[end] != '\t') {
		r.invalid++
		return
	}
	name, rest := line[at:end], line[skipBlanks(line, end):]
	cut := r.cut.cutLen(name)
	r.describe(keyword, name[cut:], rest)
	r.head.cut = cut
}

func (r *reader) describe(keyword string, name, rest []byte) {
	same := r.known && r.head.header == string(name)
	switch {
	case same && r.opened:
		return // the line is repeated, or follows the family's first sample
	case !same:
		r.close()
		named := string(name)
		r.head, r.known = family{name: named, header: named, plain: true}, true
	}
	f := &r.head
	switch keyword {
	case "TYPE":
		k, ok := parseKind(rest[:tokenEnd(rest, 0)])
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

// cleanHelp returns the text of a HELP line as valid UTF-8, truncated to maxHelp bytes of input. The result contains
// only the escapes that all readers support: \\ and \n. escapedHelp also escapes quotes for OpenMetrics.
func cleanHelp(text []byte) string {
	if len(text) > maxHelp {
		text = text[:maxHelp]
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

const maxHelp = 8 << 10
