package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// maxKeyLines limits the lines of a key without an end mark.
	maxKeyLines = 2000
	// maxForeignLines limits the lines of other writers within a key. Several threads and processes write to one log,
	// and Envoy writes an access log in blocks of 64 KiB.
	maxForeignLines = 1000
	// minPiece is the minimum length of a text within a key that counts as a part of the key by its characters alone.
	// Shorter texts may be words of another writer. A part of seven letters reveals 42 bits: 2^107 attempts remain for
	// the 256-bit key of an elliptic curve, and for an RSA key the part is no help.
	minPiece = 8
	// minKey is the minimum length of a text after a mark and a space that counts as the beginning of a key by its
	// characters alone.
	minKey     = 16
	keyBegins  = "-----BEGIN "
	keyEnds    = "-----END "
	keyMark    = "PRIVATE KEY-----"
	markDashes = "-----"
)

var (
	// tornMark matches a key's first line that is cut within its last dashes. tornEnd matches the last line, after END.
	tornMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-----BEGIN [A-Z ]*PRIVATE KEY(-{0,4})`) })
	tornEnd  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z ]*PRIVATE KEY(-{0,4})`) })
	// wholeMark matches the first or last line of a key that may be printed, such as a public key.
	wholeMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----(BEGIN|END) [A-Z ]*KEY-----`) })
)

// fieldLine matches a field in a message of several lines: in protocol buffer text, YAML or JSON.
var fieldLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*(?:- )?"?([A-Za-z0-9_.-]+)"?\s*(:?)\s*(.*)$`) })

// Lines removes secrets from a text that arrives line by line. A secret may extend over several lines: a PEM key, or
// the value of a field with a secret's name. Use one Lines per text. It is not safe for concurrent use.
type Lines struct {
	key     int  // lines of the current key so far; 0 outside a key
	torn    int  // dashes that another writer's text separated from the key's first or last line; 0 is none
	foreign int  // lines of other writers within the key
	hidden  int  // indentation of the secret field plus one; 0 is none
	listed  bool // the secret field is a YAML list, whose elements may have the field's own indentation
	header  int  // indentation of the secret header's name plus one; 0 is none
}

// Begin redacts the first line of a message. Fields of the previous message end, but an open key continues.
func (l *Lines) Begin(line string) string {
	l.hidden, l.listed, l.header = 0, false, 0
	if end := strings.TrimRight(line, " \t\r"); end != "" && strings.Contains("{[:|>+-", end[len(end)-1:]) {
		if m := lastName().FindStringSubmatch(end); m != nil && IsSecret(m[1]) {
			l.hidden = 1
		}
	}
	return inLine(RedactPatterns(line))
}

// lastName matches the name of a field at the end of a line, whose value follows on the next lines.
var lastName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)\\?"?(?:\s*\{|\s*:\s*[{[|>]?[+-]?)$`)
})

// inLineField matches a field within a line whose value is a string or a group of fields, as in single-line protocol
// buffer text.
var inLineField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)(\\?"?\s*(?::\s*)?)(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\"[^"]*"|"(?:[^"\\]|\\.)*")`)
})

// inLine removes the values of fields with a secret's name from a line.
func inLine(line string) string {
	if !strings.Contains(line, `"`) || !mayName(line) {
		return line
	}
	return inLineField().ReplaceAllStringFunc(line, func(field string) string {
		m := inLineField().FindStringSubmatch(field)
		fields := m[3][0] == '{'
		switch {
		case !fields && !strings.Contains(m[2], ":"): // prose, not a field
			return field
		case IsSecret(m[1]):
			return m[1] + m[2] + redacted
		case fields:
			return m[1] + m[2] + "{" + inLine(m[3][1:])
		}
		return m[1] + m[2] + m[3][:1] + inLine(m[3][1:]) // a string in a JSON log can contain fields
	})
}

// stems are lower-case words. The name of every secret contains one of them.
var stems = []string{"pass", "key", "token", "authorization", "cookie", "credential", "secret", "hmac", "ticket"}

// mayName reports whether a line may contain the name of a secret. The regular expression is fifty times slower.
func mayName(line string) bool {
	line = strings.ToLower(line)
	return slices.ContainsFunc(stems, func(stem string) bool { return strings.Contains(line, stem) })
}

// Key removes a private key, also when it extends over several lines and text of other writers is mixed in. all reports
// whether the whole line belongs to a key; rest is then empty, except in the key's first line.
func (l *Lines) Key(line string) (rest string, all bool) {
	if l.key > 0 {
		return l.redactInside(line)
	}
	if !strings.Contains(line, keyBegins) {
		return l.redactOutside(line), false
	}
	line, after, open := withoutKeys(line)
	if open {
		if strings.Contains(after, keyEnds) { // cut within its last mark
			return line, false
		}
		l.begin()
		return line + afterMark(after), false
	}
	if begin := strings.LastIndex(line, keyBegins); begin >= 0 {
		l.tear(line[begin:])
	}
	return line, false
}

// tear records a key's first line that another writer's text cut within its dashes. The missing dashes may already
// follow in the same line.
func (l *Lines) tear(line string) {
	m := tornMark().FindStringSubmatch(line)
	if m == nil {
		if isMarkRest(line) {
			l.begin()
		}
		return
	}
	l.torn, l.foreign = len(markDashes)-len(m[1]), 0
	l.completeMark(line[len(m[0]):])
}

// redactOutside redacts a line outside a key. If the line completes a torn mark, the next line belongs to a key.
func (l *Lines) redactOutside(line string) string {
	switch {
	case isMarkRest(line):
		l.begin()
	case l.torn > 0:
		l.completeMark(line)
	}
	return line
}

// completeMark looks for the missing dashes of a torn mark at the end of a line. The lines after them belong to the
// key.
func (l *Lines) completeMark(line string) {
	if l.completesMark(line) {
		l.begin()
		return
	}
	if l.foreign++; l.foreign > maxForeignLines {
		l.torn = 0
	}
}

// completesMark reports whether a line ends with the missing dashes of a torn mark.
func (l *Lines) completesMark(line string) bool {
	return l.torn > 0 && strings.HasSuffix(trimEnds(line), markDashes[:l.torn])
}

func (l *Lines) begin() { l.key, l.torn, l.foreign = 1, 0, 0 }

func (l *Lines) endKey() { l.key, l.torn = 0, 0 }

// redactInside redacts a line within a key.
func (l *Lines) redactInside(line string) (rest string, all bool) {
	another := isOtherPEM(line)
	if end := strings.Index(line, keyEnds); end >= 0 && !another {
		return l.end(line[:end], line[end+len(keyEnds):])
	}
	if strings.Contains(line, keyBegins) && !another {
		l.endKey()
		return l.Key(line) // the next key begins
	}
	if isMarkRest(line) {
		l.endKey()
		return "", true
	}
	if l.completesMark(line) {
		l.endKey()
		return withoutPieces(line), false
	}
	l.key++
	of := isKeyLine(line)
	if !of {
		l.foreign++
	}
	if l.key > maxKeyLines || l.foreign > maxForeignLines {
		l.endKey()
		return line, false
	}
	if of {
		return "", true
	}
	return withoutPieces(line), false
}

// isMarkRest reports whether a line ends with the rest of a key's first or last line, whose beginning was written
// before another writer's text.
func isMarkRest(line string) bool {
	return strings.HasSuffix(trimEnds(line), "Y-----") && !wholeMark().MatchString(line)
}

// end redacts a key's last line: before is the text before the end mark, and after is the text after the mark's
// beginning.
func (l *Lines) end(before, after string) (rest string, all bool) {
	if isKeyLine(before) {
		before = ""
	}
	_, behind, whole := strings.Cut(after, "-----")
	if !whole { // another writer's text is within the mark, and the rest of the mark follows later
		if m := tornEnd().FindStringSubmatch(after); m != nil {
			l.torn = len(markDashes) - len(m[1])
			if l.completesMark(after[len(m[0]):]) {
				l.endKey()
			}
		}
		return withoutPieces(before) + strings.TrimLeft(after, "ABCDEFGHIJKLMNOPQRSTUVWXYZ -"), false
	}
	l.endKey()
	if trimEnds(behind) == "" {
		behind = ""
	}
	if before+behind == "" {
		return "", true
	}
	return l.Key(withoutPieces(before) + behind) // another key may begin
}

// trimEnds removes spaces, quotes and commas around a quoted line.
func trimEnds(line string) string {
	line = strings.Trim(line, " \t\r\"',")
	line = strings.TrimSuffix(strings.TrimSuffix(line, `\n`), `\r`)
	return strings.TrimRight(line, ` \`)
}

// isKeyLine reports whether a line may belong to a key: base64, or a header of an old PEM format.
func isKeyLine(line string) bool {
	line = trimEnds(line)
	if strings.HasPrefix(line, "Proc-Type:") || strings.HasPrefix(line, "DEK-Info:") {
		return true
	}
	for i := range len(line) {
		if !base64Byte(line[i]) {
			return false
		}
	}
	return true
}

func base64Byte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '+' || c == '/' || c == '='
}

// Field redacts a further line of a message: texts that look like secrets, and values of fields with a secret's name.
func (l *Lines) Field(line string) string {
	indent := len(line) - len(strings.TrimLeft(line, " \t"))
	element := strings.HasPrefix(line[indent:], "- ")
	if l.hidden > 0 && (indent >= l.hidden || l.listed && element && indent+1 == l.hidden) {
		return hide(line, indent)
	}
	l.hidden = 0
	at, name, value, ok := parseField(line)
	ofHeader := l.header == indent+1 && holdsHeader[name]
	if l.header > indent {
		l.header = 0
	}
	switch {
	case ok && namesHeader[name] && IsSecret(value):
		l.header = nameAt(line) + 1 // the other fields of a list element have the indentation of its first field
	case ok && (ofHeader || IsSecret(name)):
		l.hidden, l.listed = indent+1, !element
		if opens[value] {
			return line
		}
		return line[:at] + redacted
	}
	return line[:indent] + inLine(RedactPatterns(line[indent:]))
}

// nameAt returns the column at which the name of a line's field begins.
func nameAt(line string) int {
	return len(line) - len(strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(line, " \t"), "- "), " "))
}

// Continues reports whether a line looks like the continuation of a message: it is indented, a bracket, or a field.
func Continues(line string) bool {
	if line == "" || strings.ContainsAny(line[:1], " \t}])") {
		return true
	}
	if line[0] == '{' || line[0] == '[' {
		return false // the beginning of an access log line
	}
	_, _, _, ok := parseField(line)
	return ok
}

// hide removes everything except names, locations and brackets from a line within a secret field.
func hide(line string, indent int) string {
	if strings.Trim(line[indent:], "{}[],") == "" {
		return line
	}
	at, name, value, ok := parseField(line)
	switch {
	case !ok:
		return line[:indent] + redacted
	case opens[value]:
		return line
	case locations[name]:
		return line[:at] + RedactPatterns(line[at:])
	}
	return line[:at] + redacted
}

// opens are the tokens that announce a value on the next lines.
var opens = map[string]bool{"": true, "{": true, "[": true, "|": true, "|-": true, "|+": true, ">": true, ">-": true, ">+": true}

// parseField splits a line with a field; at is the column at which the value begins.
func parseField(line string) (at int, name, value string, ok bool) {
	m := fieldLine().FindStringSubmatchIndex(line)
	if m == nil {
		return 0, "", "", false
	}
	name, value = line[m[2]:m[3]], line[m[6]:m[7]]
	return m[6], name, value, m[4] < m[5] || value == "{"
}
