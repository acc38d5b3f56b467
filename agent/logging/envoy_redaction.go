package logging

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// EnvoyRedactor redacts secrets in the output of one Envoy: in log messages, which may have several lines, and in the
// headers that Envoy logs at level debug. The output may also contain access log lines, in which EnvoyRedactor redacts
// private keys only.
type EnvoyRedactor struct {
	lines     redact.Lines
	inMessage bool // the next line may continue a message
}

// RedactLine returns the redacted line. ok is false if the whole line is secret and must be dropped.
func (w *EnvoyRedactor) RedactLine(line string) (text string, ok bool) {
	line, dropped := w.lines.Key(line)
	if dropped {
		return "", false
	}
	at := findEnvoyMessage(line)
	if at < 0 {
		return w.redactContinuation(line), true
	}
	if at > 0 { // an access log entry may end anywhere in the line
		text = w.redactContinuation(line[:at])
	}
	w.inMessage = true
	return text + w.lines.Begin(line[at:]), true
}

// redactContinuation redacts a line, or part of a line, that does not begin an Envoy log message.
func (w *EnvoyRedactor) redactContinuation(line string) string {
	if name, _, ok := headerLine(line); ok {
		if redact.IsSecret(name) {
			return "'" + name + "', '[redacted]'"
		}
		return redact.RedactPatterns(line)
	}
	if w.inMessage = w.inMessage && redact.Continues(line); w.inMessage {
		return w.lines.Field(line)
	}
	return line
}

// headerLine parses "'name', 'value'", the line format in which Envoy logs headers.
func headerLine(line string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(withoutThread(line), "'")
	if !ok || !strings.HasSuffix(rest, "'") {
		return "", "", false
	}
	name, value, ok = strings.Cut(rest[:len(rest)-1], "', '")
	return name, value, ok
}

// withoutThread removes the suffix "\tthread=ID", which the agent's text format adds to the last line of a message.
func withoutThread(line string) string {
	at := strings.LastIndex(line, "\tthread=")
	if at < 0 {
		return line
	}
	return line[:at]
}

// Starts of Envoy's log messages, by log format; the digits are placeholders. defaultStart is the start in Envoy's
// default format, which has a space between date and time, where access logs have a T. In the agent's text format,
// textStart is followed by the level and textMark. jsonStart is the start with --log_as_json.
const (
	defaultStart = "[2000-01-02 15:04:05.678]["
	textStart    = "2000-01-02T15:04:05.678901Z\t"
	textMark     = "\tenvoy "
	jsonStart    = `{"level":"`
)

// findEnvoyMessage returns the index at which an Envoy log message begins in line, or -1 if none begins in line. The
// index is above 0 only if line begins with an unfinished access log entry.
func findEnvoyMessage(line string) int {
	if strings.HasPrefix(line, jsonStart) {
		return 0
	}
	if at := findTextStart(line); at >= 0 {
		return at
	}
	for from := 0; ; {
		at := strings.IndexAny(line[from:], "[{")
		if at < 0 {
			return -1
		}
		at += from
		if hasForm(line[at:], defaultStart) || isJSONStart(line[at:]) {
			return at
		}
		from = at + 1
	}
}

// findTextStart returns the index at which a message in the agent's text format begins, or -1.
func findTextStart(line string) int {
	for from := 0; ; {
		mark := strings.Index(line[from:], textMark)
		if mark < 0 {
			return -1
		}
		mark += from
		level := strings.LastIndexByte(line[:mark], '\t') + 1
		if at := level - len(textStart); at >= 0 && hasForm(line[at:], textStart) {
			return at
		}
		from = mark + 1
	}
}

// isJSONStart reports whether text starts a JSON log line of Envoy. It checks the second field as well, because a JSON
// access log may begin with the same first field.
func isJSONStart(text string) bool {
	rest, ok := strings.CutPrefix(text, jsonStart)
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, `"`)
	return ok && strings.HasPrefix(rest, `,"time":"`)
}

// hasForm reports whether text begins with form. A digit in form matches any digit.
func hasForm(text, form string) bool {
	if len(text) < len(form) {
		return false
	}
	for i, want := range []byte(form) {
		got := text[i]
		if '0' <= want && want <= '9' {
			if got < '0' || got > '9' {
				return false
			}
		} else if got != want {
			return false
		}
	}
	return true
}
