package agent

import (
	"strings"

	"github.com/pilotfish-mesh/pilotfish/internal/redact"
)

// envoySays takes out of a line of Envoy's what looks like a secret: of its own log, and of the headers that it lists there
// at the level debug. Lines of access logs, which may go the same way, are as their author wants them.
func envoySays(line string) string {
	if name, _, ok := headerLine(line); ok {
		if redact.IsSecret(name) {
			return "'" + name + "', '[redacted]'"
		}
		return redact.Looks(line)
	}
	if isEnvoysOwn(line) {
		return redact.Looks(line)
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
