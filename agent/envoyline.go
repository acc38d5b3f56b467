package agent

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// envoyWords takes out of what one Envoy writes what looks like a secret: of its own log, also where a message goes over
// several lines, and of the headers that it lists there at the level debug. Lines of access logs, which may go the same
// way, are as their author wants them, but for private keys.
type envoyWords struct {
	lines   redact.Lines
	message bool // what comes may be more of a message of its own
}

// line gives what is left of a line; ok is false for nothing.
func (w *envoyWords) line(line string) (text string, ok bool) {
	own := isEnvoysOwn(line)
	if own {
		w.message = true
	}
	line, gone := w.lines.Key(line)
	switch {
	case gone:
		return "", false
	case own:
		return w.lines.Begin(line), true
	}
	if name, _, ok := headerLine(line); ok {
		if redact.IsSecret(name) {
			return "'" + name + "', '[redacted]'", true
		}
		return redact.Looks(line), true
	}
	if w.message = w.message && redact.Continues(line); w.message {
		return w.lines.Field(line), true
	}
	return line, true
}

// headerLine reads "'name', 'value'", as Envoy lists headers, one a line.
func headerLine(line string) (name, value string, ok bool) {
	rest, ok := strings.CutPrefix(line, "'")
	if !ok || !strings.HasSuffix(rest, "'") {
		return "", "", false
	}
	name, value, ok = strings.Cut(rest[:len(rest)-1], "', '")
	return name, value, ok
}

// What Envoy's log begins a line with, in its own format and in that of --log_as_json: a date that has no T, as those of
// access logs have.
const (
	textBegins = "[2000-01-02 15:04:05.678]["
	jsonBegins = `{"level":"`
)

func isEnvoysOwn(line string) bool {
	if strings.HasPrefix(line, jsonBegins) {
		return true
	}
	if len(line) < len(textBegins) {
		return false
	}
	for i, want := range []byte(textBegins) {
		got := line[i]
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
