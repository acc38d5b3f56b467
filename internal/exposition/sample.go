package exposition

import (
	"bytes"
	"math"
	"strconv"
	"unicode/utf8"
)

// mostLabels bounds the labels of one sample; each is compared with all before it.
const mostLabels = 128

// span is a part of a line.
type span struct{ from, to int }

// label is where a label's name and its value, without the quotes, are.
type label struct{ name, value span }

// sample is a line with a value, taken apart. It is used again for line after line.
type sample struct {
	line   []byte
	name   span
	labels span // between the braces
	pairs  []label
	// loose says that the labels are written in a way that OpenMetrics does not know: with blanks, or a comma at the end.
	loose           bool
	value, time     span
	exemplar        span // from its brace
	exemplarPresent bool
}

func (s *sample) text(p span) []byte { return s.line[p.from:p.to] }

// nameByte tells which bytes a name is made of: 1 anywhere, 2 not at the beginning, 4 not in a label's name.
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

// nameEnd is where the metric's name that begins at from ends; from itself if there is none.
func nameEnd(line []byte, from int) int {
	if from >= len(line) || nameByte[line[from]] == 0 || nameByte[line[from]] == 2 {
		return from
	}
	end := from + 1
	for end < len(line) && nameByte[line[end]] != 0 {
		end++
	}
	return end
}

func labelNameEnd(line []byte, from int) int {
	if from >= len(line) || nameByte[line[from]] != 1 {
		return from
	}
	end := from + 1
	for end < len(line) && nameByte[line[end]]&3 != 0 {
		end++
	}
	return end
}

func blanks(line []byte, from int) int {
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

// parse takes a line apart, and says whether it is a sample that every reader of the format understands.
func (s *sample) parse(line []byte, f Format) bool {
	*s = sample{line: line, pairs: s.pairs[:0]}
	at := blanks(line, 0)
	s.name = span{at, nameEnd(line, at)}
	if s.name.from == s.name.to {
		return false
	}
	at = blanks(line, s.name.to)
	if at < len(line) && line[at] == '{' {
		var ok bool
		if at, ok = s.parseLabels(at + 1); !ok {
			return false
		}
		at = blanks(line, at)
	} else if at == s.name.to {
		return false
	}
	s.value = span{at, tokenEnd(line, at)}
	if !validValue(s.text(s.value)) {
		return false
	}
	return s.parseRest(f)
}

// parseRest reads what may follow the value: a time and, in OpenMetrics, an exemplar.
func (s *sample) parseRest(f Format) bool {
	at := blanks(s.line, s.value.to)
	if at < len(s.line) && s.line[at] != '#' {
		s.time = span{at, tokenEnd(s.line, at)}
		if !validTime(s.text(s.time), f) {
			return false
		}
		at = blanks(s.line, s.time.to)
	}
	if at == len(s.line) {
		return true
	}
	if f != OpenMetrics || s.line[at] != '#' {
		return false
	}
	at = blanks(s.line, at+1)
	s.exemplar, s.exemplarPresent = span{at, len(bytes.TrimRight(s.line, " \t"))}, true
	return s.exemplar.from < s.exemplar.to && s.line[at] == '{'
}

// parseLabels reads labels from behind the opening brace to behind the closing one.
func (s *sample) parseLabels(from int) (end int, ok bool) {
	line, at := s.line, from
	for {
		start := at
		if at = blanks(line, at); at != start {
			s.loose = true
		}
		if at < len(line) && line[at] == '}' {
			s.loose = s.loose || (len(s.pairs) > 0)
			s.labels = span{from, at}
			return at + 1, utf8.Valid(line[from:at])
		}
		if at, ok = s.parseLabel(at); !ok {
			return at, false
		}
		start = at
		if at = blanks(line, at); at != start {
			s.loose = true
		}
		switch {
		case at < len(line) && line[at] == ',':
			at++
		case at < len(line) && line[at] == '}':
			s.labels = span{from, at}
			return at + 1, utf8.Valid(line[from:at])
		default:
			return at, false
		}
	}
}

// parseLabel reads name="value".
func (s *sample) parseLabel(at int) (end int, ok bool) {
	line := s.line
	name := span{at, labelNameEnd(line, at)}
	if name.from == name.to || len(s.pairs) == mostLabels {
		return at, false
	}
	if at = blanks(line, name.to); at >= len(line) || line[at] != '=' {
		return at, false
	}
	s.loose = s.loose || at != name.to
	quote := blanks(line, at+1)
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

// newLabel says whether a label's name is not reserved and not there yet.
func (s *sample) newLabel(name []byte) bool {
	for _, p := range s.pairs {
		if bytes.Equal(s.text(p.name), name) {
			return false
		}
	}
	return string(name) != "__name__"
}

// quotedEnd finds the quote that ends a text, and checks the escapes before it.
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

// find gives the label of a name.
func (s *sample) find(name string) (label, bool) {
	for _, p := range s.pairs {
		if string(s.text(p.name)) == name {
			return p, true
		}
	}
	return label{}, false
}

// validValue takes what both formats understand, after value has put it right.
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

// parseFloat reads decimal numbers, infinities and NaN; not Go's hexadecimal ones, nor those out of range.
func parseFloat(text []byte) (float64, bool) {
	if len(text) == 0 || len(text) > 64 || bytes.ContainsAny(text, "pPxX_") {
		return 0, false
	}
	v, err := strconv.ParseFloat(string(text), 64)
	return v, err == nil
}

// validTime: text counts whole milliseconds, OpenMetrics seconds.
func validTime(text []byte, f Format) bool {
	if f == Text {
		_, err := strconv.ParseInt(string(text), 10, 64)
		return err == nil
	}
	v, ok := parseFloat(text)
	return ok && math.Abs(v) < 1e15
}
