package exposition

import (
	"bytes"
	"math"
	"strconv"
	"strings"
)

const exported = "exported_"

// Label is a label that is added to the samples of a source, to distinguish them from those of other sources. If a
// sample already has a label of that name, that label is renamed to exported_<name>.
type Label struct{ Name, Value string }

// appendSeries appends the name and labels of a sample to b in the output format.
func (c *copier) appendSeries(b []byte, s *sample, suffix string) []byte {
	b = append(append(b, c.prefix...), s.text(s.name)...)
	if c.format == Text && c.current.kind == gaugeHistogram && len(suffix) > 2 && suffix[1] == 'g' {
		b = append(append(b[:len(b)-len(suffix)], '_'), suffix[2:]...) // _gsum and _gcount become _sum and _count
	}
	return c.appendLabels(b, s)
}

// appendPoint appends the value, timestamp and exemplar.
func (c *copier) appendPoint(b []byte, s *sample, suffix string) []byte {
	b = append(b, ' ')
	b = appendValue(b, s.text(s.value))
	return append(c.appendRest(b, s, suffix), '\n')
}

// appendLabels appends the labels, unchanged where possible.
func (c *copier) appendLabels(b []byte, s *sample) []byte {
	canonical := ""
	if c.format == OpenMetrics {
		canonical = c.numericLabel()
	}
	if len(s.pairs) == 0 && c.label == nil {
		return b
	}
	b = append(b, '{')
	if c.label == nil && canonical == "" && (c.format == Text || !s.loose) {
		return append(append(b, s.text(s.labels)...), '}')
	}
	if c.label != nil {
		b = append(append(b, c.label.Name...), '=')
		b = append(appendQuoted(b, c.label.Value), ',')
	}
	for _, p := range s.pairs {
		name, value := s.text(p.name), s.text(p.value)
		if c.label != nil && string(name) == c.label.Name {
			b = append(b, exported...)
		}
		b = append(append(append(b, name...), '=', '"'), value...)
		if canonical != "" && string(name) == canonical && wholeNumber(value, 15) {
			b = append(b, ".0"...)
		}
		b = append(b, '"', ',')
	}
	b[len(b)-1] = '}'
	return b
}

// appendRest appends the timestamp and the exemplar.
func (c *copier) appendRest(b []byte, s *sample, suffix string) []byte {
	if t := s.text(s.time); len(t) > 0 {
		b = append(b, ' ')
		switch {
		case c.from == c.format:
			b = append(b, t...)
		case c.format == OpenMetrics:
			b = appendSeconds(b, t)
		default:
			b = appendMilliseconds(b, t)
		}
	}
	if c.format == OpenMetrics && (suffix == "_total" || suffix == "_bucket") && s.exemplarPresent {
		b = appendExemplar(b, s.text(s.exemplar))
	}
	return b
}

// appendSeconds converts whole milliseconds to seconds.
func appendSeconds(b, milliseconds []byte) []byte {
	n, err := strconv.ParseInt(string(milliseconds), 10, 64)
	if err != nil {
		return b
	}
	return strconv.AppendFloat(b, float64(n)/1000, 'f', 3, 64)
}

func appendMilliseconds(b, seconds []byte) []byte {
	v, ok := parseFloat(seconds)
	if !ok {
		return b
	}
	return strconv.AppendInt(b, int64(math.Round(v*1000)), 10)
}

// appendValue appends a value. It writes infinities and NaN in the form that both formats require.
func appendValue(b, text []byte) []byte {
	if c := text[len(text)-1]; (c >= '0' && c <= '9') || c == '.' {
		return append(b, text...)
	}
	v, _ := parseFloat(text)
	return strconv.AppendFloat(b, v, 'g', -1, 64) // +Inf, -Inf, NaN
}

func appendQuoted(b []byte, text string) []byte {
	b = append(b, '"')
	for i := range len(text) {
		switch text[i] {
		case '\\', '"':
			b = append(b, '\\', text[i])
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, text[i])
		}
	}
	return append(b, '"')
}

// appendComment appends text as one line that all readers treat as a comment.
func appendComment(b []byte, text string) []byte {
	b = append(b, "# pilotfish: "...)
	for _, r := range strings.ToValidUTF8(text, "\uFFFD") {
		if r < ' ' || r == 0x7f {
			r = ' '
		}
		b = append(b, string(r)...)
	}
	return append(b, '\n')
}

func escapedHelp(text string, f Format) string {
	if f == OpenMetrics {
		return strings.ReplaceAll(text, `"`, `\"`)
	}
	return text
}

// validUnit reports whether a unit is valid: it has the form of a name, and the family's name ends with it.
func validUnit(name, unit string) bool {
	return labelNameEnd([]byte(unit), 0) == len(unit) && strings.HasSuffix(name, "_"+unit)
}

// maxExemplar is OpenMetrics' maximum number of characters in an exemplar's labels.
const maxExemplar = 128

// appendExemplar appends an exemplar, which has the form of a sample without a name. It omits an invalid exemplar.
func appendExemplar(b, text []byte) []byte {
	var s sample
	if !s.parse(append([]byte("x"), text...), OpenMetrics) || s.exemplarPresent || s.loose {
		return b
	}
	length := 0
	for _, p := range s.pairs {
		length += len(bytes.Runes(s.text(p.name))) + len(bytes.Runes(s.text(p.value)))
	}
	if length > maxExemplar {
		return b
	}
	b = append(append(append(b, " # {"...), s.text(s.labels)...), "} "...)
	b = appendValue(b, s.text(s.value))
	if t := s.text(s.time); len(t) > 0 {
		b = append(append(b, ' '), t...)
	}
	return b
}
