package redact

import (
	"regexp"
	"strings"
)

const (
	// mostKeyLines is how long a key may be whose end never comes.
	mostKeyLines = 2000
	keyBegins    = "-----BEGIN "
	keyEnds      = "-----END "
	keyMark      = "PRIVATE KEY-----"
)

// fieldLine is a line of a message that goes over several: a field of a protocol buffer's text, of YAML, or of JSON.
var fieldLine = regexp.MustCompile(`^\s*(?:- )?"?([A-Za-z0-9_.-]+)"?\s*(:?)\s*(.*)$`)

// Lines leaves secrets out of a text that comes line by line and in which one may go over several of them: a key in PEM,
// and what is in a field that is named as a secret is. It is for one text, and for one caller at a time.
type Lines struct {
	key    int // lines of a key so far; 0 is none
	hidden int // the indentation of the field that is a secret, and one; 0 is none
}

// Reset says that what comes is no more of the last message. A key goes on all the same.
func (l *Lines) Reset() { l.hidden = 0 }

// Key leaves a private key out, whichever lines it goes over. It says whether the line is of one to its end: then there is
// nothing left of it, unless it is the first.
func (l *Lines) Key(line string) (rest string, all bool) {
	if l.key > 0 {
		if end := strings.Index(line, keyEnds); end >= 0 {
			l.key = 0
			if _, after, ok := strings.Cut(line[end+len(keyEnds):], "-----"); ok {
				line = after
			}
			return line, strings.Trim(line, " \t\"',") == ""
		}
		if l.key++; l.key <= mostKeyLines && ofKey(line) {
			return "", true
		}
		l.key = 0
	}
	begin := strings.LastIndex(line, keyBegins)
	if begin < 0 || !strings.Contains(line[begin:], keyMark) || strings.Contains(line[begin:], keyEnds) {
		return line, false
	}
	if after := line[begin+strings.Index(line[begin:], keyMark)+len(keyMark):]; strings.Trim(after, "\r \t") != "" {
		return line, false // in one line, with whatever stands for the ends of lines: Looks takes it out
	}
	l.key = 1
	return line[:begin] + redacted, false
}

// ofKey says whether a line may be one of a key: base64, or a header of an old format.
func ofKey(line string) bool {
	line = strings.TrimSpace(line)
	if strings.HasPrefix(line, "Proc-Type:") || strings.HasPrefix(line, "DEK-Info:") {
		return true
	}
	for i := range len(line) {
		if c := line[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '=') {
			return false
		}
	}
	return true
}

// Field leaves out of one further line of a message what looks like a secret, and what is named as one.
func (l *Lines) Field(line string) string {
	indent := len(line) - len(strings.TrimLeft(line, " \t"))
	if l.hidden > 0 && indent >= l.hidden {
		return hide(line, indent)
	}
	l.hidden = 0
	at, name, value, ok := field(line)
	switch {
	case !ok || !IsSecret(name):
		return line[:indent] + Looks(line[indent:])
	case opens[value]:
		l.hidden = indent + 1
		return line
	}
	return line[:at] + redacted
}

// Continues says whether a line looks like one of a message that began on a line before: it is indented, a bracket, or a
// field.
func Continues(line string) bool {
	if line == "" || strings.ContainsAny(line[:1], " \t}])") {
		return true
	}
	if line[0] == '{' || line[0] == '[' {
		return false // as lines of access logs begin
	}
	_, _, _, ok := field(line)
	return ok
}

// hide leaves all but names, places and brackets out of a line within a field that is a secret.
func hide(line string, indent int) string {
	if strings.Trim(line[indent:], "{}[],") == "" {
		return line
	}
	at, name, value, ok := field(line)
	switch {
	case !ok:
		return line[:indent] + redacted
	case opens[value]:
		return line
	case places[name]:
		return line[:at] + Looks(line[at:])
	}
	return line[:at] + redacted
}

// opens are what stands in place of a value that goes over the next lines.
var opens = map[string]bool{"": true, "{": true, "[": true, "|": true, "|-": true, ">": true, ">-": true}

// field takes a line apart that is one of a message's fields; at is where its value begins.
func field(line string) (at int, name, value string, ok bool) {
	m := fieldLine.FindStringSubmatchIndex(line)
	if m == nil {
		return 0, "", "", false
	}
	name, value = line[m[2]:m[3]], line[m[6]:m[7]]
	return m[6], name, value, m[4] < m[5] || value == "{"
}
