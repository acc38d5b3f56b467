package exposition

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
)

// maxLabels is the maximum number of labels of a sample. It is limited because the name of each label is compared with
// all names before it.
const maxLabels = 128

// span is a part of a line.
type span struct{ from, to int }

// label contains the positions of a label's name and of its value without quotes.
type label struct{ name, value span }

// sample is a parsed line with a sample. It is reused for each line.
type sample struct {
	line   []byte
	name   span
	labels span // between the braces
	pairs  []label
	// loose: the labels contain spaces or a trailing comma, which OpenMetrics forbids.
	loose           bool
	value, time     span
	exemplar        span // begins at the opening brace
	exemplarPresent bool
	// anyBytes: parse accepts labels that are not valid UTF-8. Clients can send such labels inside packed labels (see
	// unpack).
	anyBytes bool
}

func (s *sample) text(p span) []byte { return s.line[p.from:p.to] }

// nameByte classifies each byte: 1 is allowed everywhere in a name, 2 is not allowed at the beginning, 4 is not allowed
// in a label's name, and 0 is never allowed.
var nameByte = func() (table [256]uint8) {
	for c := range table {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_':
			table[c] = 1
		case c >= '0' && c <= '9':
			table[c] = 2
		case c == ':':
			table[c] = 4
		}
	}
	return table
}()

// nameEnd returns the end of the metric name that begins at start. It returns start if there is no name.
func nameEnd(line []byte, start int) int {
	if start >= len(line) || nameByte[line[start]] == 0 || nameByte[line[start]] == 2 {
		return start
	}
	end := start + 1
	for end < len(line) && nameByte[line[end]] != 0 {
		end++
	}
	return end
}

func labelNameEnd(line []byte, start int) int {
	if start >= len(line) || nameByte[line[start]] != 1 {
		return start
	}
	end := start + 1
	for end < len(line) && nameByte[line[end]]&3 != 0 {
		end++
	}
	return end
}

func skipBlanks(line []byte, from int) int {
	for from < len(line) && (line[from] == ' ' || line[from] == '\t') {
		from++
	}
	return from
}

func tokenEnd(line []byte, from int) int {
	for from < len(line) && line[from] != ' ' && line[from] != '\t' {
		from++
	}
	return from
}

// parse parses a line and reports whether it is a sample that all readers of the format accept.
func (s *sample) parse(line []byte, f Format) bool {
	*s = sample{line: line, pairs: s.pairs[:0], anyBytes: s.anyBytes}
	at := skipBlanks(line, 0)
	s.name = span{at, nameEnd(line, at)}
	if s.name.from == s.name.to {
		return false
	}
	at = skipBlanks(line, s.name.to)
	if at < len(line) && line[at] == '{' {
		var ok bool
		if at, ok = s.parseLabels(at + 1); !ok {
			return false
		}
		at = skipBlanks(line, at)
	} else if at == s.name.to {
		return false
	}
	s.value = span{at, tokenEnd(line, at)}
	if !validValue(s.text(s.value)) {
		return false
	}
	return s.parseRest(f)
}

// parseRest parses the optional parts after the value: a timestamp and, in OpenMetrics, an exemplar. It reports whether
// the timestamp is valid and the exemplar begins with a brace. appendExemplar checks the rest of the exemplar.
func (s *sample) parseRest(f Format) bool {
	at := skipBlanks(s.line, s.value.to)
	if at < len(s.line) && s.line[at] != '#' {
		s.time = span{at, tokenEnd(s.line, at)}
		if !validTime(s.text(s.time), f) {
			return false
		}
		at = skipBlanks(s.line, s.time.to)
	}
	if at == len(s.line) {
		return true
	}
	if f != OpenMetrics || s.line[at] != '#' {
		return false
	}
	at = skipBlanks(s.line, at+1)
	s.exemplar, s.exemplarPresent = span{at, len(bytes.TrimRight(s.line, " \t"))}, true
	return s.exemplar.from < s.exemplar.to && s.line[at] == '{'
}

// parseLabels parses the labels. from is the position after the opening brace, and end the position after the closing
// brace.
func (s *sample) parseLabels(from int) (end int, ok bool) {
	line, at := s.line, from
	for {
		start := at
		if at = skipBlanks(line, at); at != start {
			s.loose = true
		}
		if at < len(line) && line[at] == '}' {
			s.loose = s.loose || (len(s.pairs) > 0)
			s.labels = span{from, at}
			return at + 1, s.anyBytes || utf8.Valid(line[from:at])
		}
		if at, ok = s.parseLabel(at); !ok {
			return at, false
		}
		start = at
		if at = skipBlanks(line, at); at != start {
			s.loose = true
		}
		switch {
		case at < len(line) && line[at] == ',':
			at++
		case at < len(line) && line[at] == '}':
			s.labels = span{from, at}
			return at + 1, s.anyBytes || utf8.Valid(line[from:at])
		default:
			return at, false
		}
	}
}

// parseLabel parses name="value".
func (s *sample) parseLabel(at int) (end int, ok bool) {
	line := s.line
	name := span{at, labelNameEnd(line, at)}
	if name.from == name.to || len(s.pairs) == maxLabels {
		return at, false
	}
	if at = skipBlanks(line, name.to); at >= len(line) || line[at] != '=' {
		return at, false
	}
	s.loose = s.loose || at != name.to
	quote := skipBlanks(line, at+1)
	if quote >= len(line) || line[quote] != '"' {
		return at, false
	}
	s.loose = s.loose || quote != at+1
	value := span{from: quote + 1}
	if value.to, ok = quotedEnd(line, value.from); !ok || !s.newLabel(line[name.from:name.to]) {
		return at, false
	}
	s.pairs = append(s.pairs, label{name, value})
	return value.to + 1, true
}

// newLabel reports whether a label's name is neither repeated nor the reserved name __name__.
func (s *sample) newLabel(name []byte) bool {
	for _, p := range s.pairs {
		if bytes.Equal(s.text(p.name), name) {
			return false
		}
	}
	return string(name) != "__name__"
}

// quotedEnd returns the position of the closing quote. ok is false if there is none or an escape before it is invalid.
func quotedEnd(line []byte, from int) (end int, ok bool) {
	for at := from; ; {
		n := bytes.IndexByte(line[at:], '"')
		if n < 0 {
			return len(line), false
		}
		escape := bytes.IndexByte(line[at:at+n], '\\')
		if escape < 0 {
			return at + n, true
		}
		at += escape + 1
		if at >= len(line) || (line[at] != '\\' && line[at] != '"' && line[at] != 'n') {
			return at, false
		}
		at++
	}
}

// find returns the label with the specified name.
func (s *sample) find(name string) (label, bool) {
	for _, p := range s.pairs {
		if string(s.text(p.name)) == name {
			return p, true
		}
	}
	return label{}, false
}

// validValue reports whether a value is valid in both formats after its conversion by appendValue.
func validValue(text []byte) bool {
	if wholeNumber(text, 15) {
		return true
	}
	_, ok := parseFloat(text)
	return ok
}

func wholeNumber(text []byte, digits int) bool {
	if len(text) == 0 || len(text) > digits {
		return false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// parseFloat parses decimal numbers, infinities and NaN. It rejects hexadecimal numbers and digit separators, which Go
// accepts, and numbers out of range.
func parseFloat(text []byte) (float64, bool) {
	if len(text) == 0 || len(text) > 64 || bytes.ContainsAny(text, "pPxX_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(text), 64)
	return v, err == nil
}

// validTime reports whether a timestamp is valid. In text format it is a whole number of milliseconds, in OpenMetrics a
// number of seconds.
func validTime(text []byte, f Format) bool {
	if f == Text {
		_, err := strconv.ParseInt(string(text), 10, 64)
		return err == nil
	}
	v, ok := parseFloat(text)
	return ok && math.Abs(v) < 1e15
}
