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
	line, gone := w.lines.Key(line)
	if gone {
		return "", false
	}
	at := envoysOwn(line)
	if at < 0 {
		return w.further(line), true
	}
	if at > 0 { // what others write is cut anywhere
		text = w.further(line[:at])
	}
	w.message = true
	return text + w.lines.Begin(line[at:]), true
}

// further is for what does not begin a message of Envoy's own.
func (w *envoyWords) further(line string) string {
	if name, _, ok := headerLine(line); ok {
		if redact.IsSecret(name) {
			return "'" + name + "', '[redacted]'"
		}
		return redact.Looks(line)
	}
	if w.message = w.message && redact.Continues(line); w.message {
		return w.lines.Field(line)
	}
	return line
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

// What a message of Envoy's log begins with, in its own format and in that of --log_as_json: a date that has no T, as those of
// access logs have.
const (
	textBegins = "[2000-01-02 15:04:05.678]["
	jsonBegins = `{"level":"`
)

// envoysOwn is where a message of Envoy's own begins in a line, less than 0 if none does. It is at its beginning, but for
// an access log of which another piece is still to come.
func envoysOwn(line string) int {
	if strings.HasPrefix(line, jsonBegins) {
		return 0
	}
	for from := 0; ; {
		at := strings.IndexAny(line[from:], "[{")
		if at < 0 {
			return -1
		}
		at += from
		if beginsText(line[at:]) || beginsJSON(line[at:]) {
			return at
		}
		from = at + 1
	}
}

// beginsJSON is stricter than what a whole line needs: an access log may have such fields, too.
func beginsJSON(text string) bool {
	rest, ok := strings.CutPrefix(text, jsonBegins)
	if !ok {
		return false
	}
	_, rest, ok = strings.Cut(rest, `"`)
	return ok && strings.HasPrefix(rest, `,"time":"`)
}

func beginsText(text string) bool {
	if len(text) < len(textBegins) {
		return false
	}
	for i, want := range []byte(textBegins) {
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
