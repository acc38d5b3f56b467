package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// maxKeyLines limits the number of lines of a key whose end mark is missing.
	maxKeyLines = 2000
	// maxForeignLines limits the number of lines that other threads or processes wrote to the same log between the
	// lines of a key. Envoy writes an access log in blocks of 64 KiB.
	maxForeignLines = 1000
	// minPiece is the minimum length of a base64 text among a key's lines that is treated as a part of the key. Shorter
	// texts may be words of a log message. Seven letters of a key reveal 42 bits. An attacker would still need 2^107
	// attempts to find a 256-bit key of an elliptic curve. For an RSA key, these bits are of no use.
	minPiece = 8
	// minKey is the minimum length of a base64 text after a begin mark and a space that is treated as the beginning of
	// a key.
	minKey     = 16
	keyBegins  = "-----BEGIN "
	keyEnds    = "-----END "
	keyMark    = "PRIVATE KEY-----"
	markDashes = "-----"
)

var (
	// tornMark matches a begin mark that is interrupted within its last dashes. tornEnd matches the text after the
	// "-----END " of an end mark that is interrupted in the same way.
	tornMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-----BEGIN [A-Z ]*PRIVATE KEY(-{0,4})`) })
	tornEnd  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z ]*PRIVATE KEY(-{0,4})`) })
	// wholeMark matches a whole mark of any kind of key, such as a public key.
	wholeMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----(BEGIN|END) [A-Z ]*KEY-----`) })
)

// fieldLine matches a line with one field of a multi-line message: protocol buffer text, YAML or JSON.
var fieldLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*(?:- )?"?([A-Za-z0-9_.-]+)"?\s*(:?)\s*(.*)$`) })

// Lines removes secrets from a text that arrives line by line. A secret may extend over several lines, for example a
// PEM key, or the value of a field whose name indicates a secret. Each text needs its own Lines. It is not safe for
// concurrent use.
type Lines struct {
	key int // number of lines of the current key so far; 0 outside a key
	// Number of dashes that are missing at the end of a key's mark, because the text of another process follows.
	torn    int
	foreign int  // number of lines of other processes within the key
	hidden  int  // indentation of the current secret field plus one; 0 outside a secret field
	listed  bool // the secret field is a YAML list, whose elements may have the field's own indentation
	// Indentation of the field that contains the name of the current secret header, plus one; 0 if there is none.
	header int
}

// Begin redacts the first line of a message. It ends the fields of the previous message, but not an open key.
func (l *Lines) Begin(line string) string {
	l.hidden, l.listed, l.header = 0, false, 0
	if end := strings.TrimRight(line, " \t\r"); end != "" && strings.Contains("{[:|>+-", end[len(end)-1:]) {
		if m := lastName().FindStringSubmatch(end); m != nil && IsSecret(m[1]) {
			l.hidden = 1
		}
	}
	return inLine(RedactPatterns(line))
}

// lastName matches the name of a field at the end of a line, if the field's value begins in the next line.
var lastName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)\\?"?(?:\s*\{|\s*:\s*[{[|>]?[+-]?)$`)
})

// inLineField matches a field within a line whose value is a string or a group of fields, for example in single-line
// protocol buffer text.
var inLineField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)(\\?"?\s*(?::\s*)?)(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\"[^"]*"|"(?:[^"\\]|\\.)*")`)
})

// inLine removes the values of fields within a line whose names indicate a secret.
func inLine(line string) string {
	if !strings.Contains(line, `"`) || !mayName(line) {
		return line
	}
	return inLineField().ReplaceAllStringFunc(line, func(field string) string {
		m := inLineField().FindStringSubmatch(field)
		fields := m[3][0] == '{'
		switch {
		case !fields && !strings.Contains(m[2], ":"): // quoted text after a word, not a field
			return field
		case IsSecret(m[1]):
			return m[1] + m[2] + redacted
		case fields:
			return m[1] + m[2] + "{" + inLine(m[3][1:])
		}
		return m[1] + m[2] + m[3][:1] + inLine(m[3][1:]) // a string in a JSON log can contain fields
	})
}

// stems are lower-case words. The name of every secret field contains one of them.
var stems = []string{"pass", "key", "token", "authorization", "cookie", "credential", "secret", "hmac", "ticket"}

// mayName reports whether a line may contain the name of a secret field. It is fifty times faster than the regular
// expression.
func mayName(line string) bool {
	line = strings.ToLower(line)
	return slices.ContainsFunc(stems, func(stem string) bool { return strings.Contains(line, stem) })
}

// Key removes private keys from a line, including keys of several lines that are mixed with text of other processes.
// all reports whether the whole line belongs to a key. In that case rest is empty.
func (l *Lines) Key(line string) (rest string, all bool) {
	if l.key > 0 {
		return l.redactInside(line)
	}
	if !strings.Contains(line, keyBegins) {
		return l.redactOutside(line), false
	}
	line, after, open := removeKeys(line)
	if open {
		if strings.Contains(after, keyEnds) { // the end mark is incomplete
			return line, false
		}
		l.begin()
		return line + redactAfterMark(after), false
	}
	if begin := strings.LastIndex(line, keyBegins); begin >= 0 {
		l.tear(line[begin:])
	}
	return line, false
}

// tear records a begin mark whose last dashes are interrupted by another process's text. The missing dashes may follow
// in the same line.
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

// redactOutside handles a line outside of a key. If the line completes a torn begin mark, the next line belongs to a
// key.
func (l *Lines) redactOutside(line string) string {
	switch {
	case isMarkRest(line):
		l.begin()
	case l.torn > 0:
		l.completeMark(line)
	}
	return line
}

// completeMark begins a key if the line ends with the missing dashes of a torn begin mark. It stops looking for them
// after maxForeignLines lines.
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

// redactInside redacts a line within a key. For the results see Key. After maxKeyLines or maxForeignLines lines, it
// ends the key and returns the line unchanged.
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
		return redactPieces(line), false
	}
	l.key++
	ofKey := isKeyLine(line)
	if !ofKey {
		l.foreign++
	}
	if l.key > maxKeyLines || l.foreign > maxForeignLines {
		l.endKey()
		return line, false
	}
	if ofKey {
		return "", true
	}
	return redactPieces(line), false
}

// isMarkRest reports whether a line ends with the second part of the mark of a private key. The text of another process
// separates this part from the first part.
func isMarkRest(line string) bool {
	return strings.HasSuffix(trimEnds(line), "Y-----") && !wholeMark().MatchString(line)
}

// end redacts the line with a key's end mark. before is the text before the mark, and after the text after "-----END ".
func (l *Lines) end(before, after string) (rest string, all bool) {
	if isKeyLine(before) {
		before = ""
	}
	_, behind, whole := strings.Cut(after, "-----")
	if !whole { // another process's text is within the mark, whose rest follows later
		if m := tornEnd().FindStringSubmatch(after); m != nil {
			l.torn = len(markDashes) - len(m[1])
			if l.completesMark(after[len(m[0]):]) {
				l.endKey()
			}
		}
		return redactPieces(before) + strings.TrimLeft(after, "ABCDEFGHIJKLMNOPQRSTUVWXYZ -"), false
	}
	l.endKey()
	if trimEnds(behind) == "" {
		behind = ""
	}
	if before+behind == "" {
		return "", true
	}
	return l.Key(redactPieces(before) + behind) // another key may begin
}

// trimEnds removes spaces, quotes, commas and encoded line ends from the ends of a line.
func trimEnds(line string) string {
	line = strings.Trim(line, " \t\r\"',")
	line = strings.TrimSuffix(strings.TrimSuffix(line, `\n`), `\r`)
	return strings.TrimRight(line, ` \`)
}

// isKeyLine reports whether a line may belong to a key: it is base64, or a header of an old PEM format.
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

// Field redacts a further line of a message: text that looks like a secret, and values of fields whose names indicate a
// secret.
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

// nameAt returns the column of the field's name in a line.
func nameAt(line string) int {
	return len(line) - len(strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(line, " \t"), "- "), " "))
}

// Continues reports whether a line looks like the continuation of a message: it is indented, or begins with a closing
// bracket or a field.
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

// hide redacts a line within a secret field. It does not redact field names, locations and brackets.
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

// opens contains the tokens that indicate that a field's value begins on the next line.
var opens = map[string]bool{"": true, "{": true, "[": true, "|": true, "|-": true, "|+": true, ">": true, ">-": true, ">+": true}

// parseField returns the name and value of the field in a line. at is the column of the value.
func parseField(line string) (at int, name, value string, ok bool) {
	m := fieldLine().FindStringSubmatchIndex(line)
	if m == nil {
		return 0, "", "", false
	}
	name, value = line[m[2]:m[3]], line[m[6]:m[7]]
	return m[6], name, value, m[4] < m[5] || value == "{"
}
