package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// mostKeyLines is how long a key may be whose end never comes.
	mostKeyLines = 2000
	// mostForeignLines is how many lines of others may come within a key: several threads and processes write to one log,
	// and an access log in pieces of 64 KiB.
	mostForeignLines = 1000
	// leastPiece is how long a text within a key must be to count as a piece of one of its lines by what it is made of alone,
	// where another's text is glued to it: what is shorter may be a word of that text. Seven letters are 42 bits. Whoever has
	// so many of the 256 of an elliptic curve's key still has 2^107 to try, and to an RSA key they are no help.
	leastPiece = 8
	// leastKey is how long a text must be that begins a key by what it is made of alone, behind a mark and a blank.
	leastKey   = 16
	keyBegins  = "-----BEGIN "
	keyEnds    = "-----END "
	keyMark    = "PRIVATE KEY-----"
	markDashes = "-----"
)

var (
	// tornMark is the beginning of a key's first line, cut off between its last dashes; tornEnd that of the last, after END.
	tornMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^-----BEGIN [A-Z ]*PRIVATE KEY(-{0,4})`) })
	tornEnd  = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Z ]*PRIVATE KEY(-{0,4})`) })
	// wholeMark is the first or last line of what may be shown, as a public key is.
	wholeMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----(BEGIN|END) [A-Z ]*KEY-----`) })
)

// fieldLine is a line of a message that goes over several: a field of a protocol buffer's text, of YAML, or of JSON.
var fieldLine = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^\s*(?:- )?"?([A-Za-z0-9_.-]+)"?\s*(:?)\s*(.*)$`) })

// Lines leaves secrets out of a text that comes line by line and in which one may go over several of them: a key in PEM,
// and what is in a field that is named as a secret is. It is for one text, and for one caller at a time.
type Lines struct {
	key     int  // lines of a key so far; 0 is none
	torn    int  // dashes that the first or last line of a key still lacks, since another's text came before them; 0 is none
	foreign int  // lines within it that are none of a key
	hidden  int  // the indentation of the field that is a secret, and one; 0 is none
	listed  bool // the elements of a list in it may stand as far to the left as its name, as YAML has them
	header  int  // the indentation of the name of a header that is a secret, and one; 0 is none
}

// Begin is for the first line of a message: nothing of the last one goes on, but for a key.
func (l *Lines) Begin(line string) string {
	l.hidden, l.listed, l.header = 0, false, 0
	if end := strings.TrimRight(line, " \t\r"); end != "" && strings.Contains("{[:|>+-", end[len(end)-1:]) {
		if m := lastName().FindStringSubmatch(end); m != nil && IsSecret(m[1]) {
			l.hidden = 1
		}
	}
	return inLine(Looks(line))
}

// lastName is the name of a field that is at the end of a line, and whose value comes on the next ones.
var lastName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)\\?"?(?:\s*\{|\s*:\s*[{[|>]?[+-]?)$`)
})

// inLineField is a field in the midst of a line, with a text or fields of its own, as protocol buffers are written in one.
var inLineField = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`([A-Za-z0-9_.-]+)(\\?"?\s*(?::\s*)?)(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\"[^"]*"|"(?:[^"\\]|\\.)*")`)
})

// inLine leaves fields that are named as secrets out of a line.
func inLine(line string) string {
	if !strings.Contains(line, `"`) || !mayName(line) {
		return line
	}
	return inLineField().ReplaceAllStringFunc(line, func(field string) string {
		m := inLineField().FindStringSubmatch(field)
		fields := m[3][0] == '{'
		switch {
		case !fields && !strings.Contains(m[2], ":"): // words
			return field
		case IsSecret(m[1]):
			return m[1] + m[2] + redacted
		case fields:
			return m[1] + m[2] + "{" + inLine(m[3][1:])
		}
		return m[1] + m[2] + m[3][:1] + inLine(m[3][1:]) // JSON of a log has texts with fields
	})
}

// stems are in the names of all secrets, in small letters.
var stems = []string{"pass", "key", "token", "authorization", "cookie", "credential", "secret", "hmac", "ticket"}

// mayName says whether a name of a secret may be in a line. The expression costs fifty times as much.
func mayName(line string) bool {
	line = strings.ToLower(line)
	return slices.ContainsFunc(stems, func(stem string) bool { return strings.Contains(line, stem) })
}

// Key leaves a private key out, whichever lines it goes over, and whatever of others it is glued to in them. It says whether
// the line is of a key to its end: then there is nothing left of it, unless it is the first.
func (l *Lines) Key(line string) (rest string, all bool) {
	if l.key > 0 {
		return l.within(line)
	}
	if !strings.Contains(line, keyBegins) {
		return l.outside(line), false
	}
	line, after, open := withoutKeys(line)
	if open {
		if strings.Contains(after, keyEnds) { // cut off within its last mark
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

// tear remembers a key's first line that another's text comes into between its dashes. The rest may be in the line already.
func (l *Lines) tear(line string) {
	m := tornMark().FindStringSubmatch(line)
	if m == nil {
		if restOfMark(line) {
			l.begin()
		}
		return
	}
	l.torn, l.foreign = len(markDashes)-len(m[1]), 0
	l.mend(line[len(m[0]):])
}

// outside is for a line before any key: the rest of a torn mark makes the next one a key's.
func (l *Lines) outside(line string) string {
	switch {
	case restOfMark(line):
		l.begin()
	case l.torn > 0:
		l.mend(line)
	}
	return line
}

// mend looks for the dashes that a torn mark lacks, at the end of a line: what follows them is the key's.
func (l *Lines) mend(line string) {
	if l.lacks(line) {
		l.begin()
		return
	}
	if l.foreign++; l.foreign > mostForeignLines {
		l.torn = 0
	}
}

// lacks says whether a line ends with what a torn mark lacks.
func (l *Lines) lacks(line string) bool {
	return l.torn > 0 && strings.HasSuffix(trimEnds(line), markDashes[:l.torn])
}

func (l *Lines) begin() { l.key, l.torn, l.foreign = 1, 0, 0 }

func (l *Lines) over() { l.key, l.torn = 0, 0 }

// within is for a line after a key's first.
func (l *Lines) within(line string) (rest string, all bool) {
	another := ofAnother(line)
	if end := strings.Index(line, keyEnds); end >= 0 && !another {
		return l.end(line[:end], line[end+len(keyEnds):])
	}
	if strings.Contains(line, keyBegins) && !another {
		l.over()
		return l.Key(line) // another begins
	}
	if restOfMark(line) {
		l.over()
		return "", true
	}
	if l.lacks(line) {
		l.over()
		return withoutPieces(line), false
	}
	l.key++
	of := ofKey(line)
	if !of {
		l.foreign++
	}
	if l.key > mostKeyLines || l.foreign > mostForeignLines {
		l.over()
		return line, false
	}
	if of {
		return "", true
	}
	return withoutPieces(line), false
}

// restOfMark says whether a line ends with the rest of a key's first or last line, of which the beginning was written before
// another's.
func restOfMark(line string) bool {
	return strings.HasSuffix(trimEnds(line), "Y-----") && !wholeMark().MatchString(line)
}

// end is for a key's last line: before is what it has before the mark of the end, and after what follows the mark's beginning.
func (l *Lines) end(before, after string) (rest string, all bool) {
	if ofKey(before) {
		before = ""
	}
	_, behind, whole := strings.Cut(after, "-----")
	if !whole { // another's text came into the mark, of which the rest is still to come
		if m := tornEnd().FindStringSubmatch(after); m != nil {
			l.torn = len(markDashes) - len(m[1])
			if l.lacks(after[len(m[0]):]) {
				l.over()
			}
		}
		return withoutPieces(before) + strings.TrimLeft(after, "ABCDEFGHIJKLMNOPQRSTUVWXYZ -"), false
	}
	l.over()
	if trimEnds(behind) == "" {
		behind = ""
	}
	if before+behind == "" {
		return "", true
	}
	return l.Key(withoutPieces(before) + behind) // another may begin
}

// trimEnds leaves out what is around the lines of a text that is quoted line by line.
func trimEnds(line string) string {
	line = strings.Trim(line, " \t\r\"',")
	line = strings.TrimSuffix(strings.TrimSuffix(line, `\n`), `\r`)
	return strings.TrimRight(line, ` \`)
}

// ofKey says whether a line may be one of a key: base64, or a header of an old format.
func ofKey(line string) bool {
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

// Field leaves out of one further line of a message what looks like a secret, and what is named as one.
func (l *Lines) Field(line string) string {
	indent := len(line) - len(strings.TrimLeft(line, " \t"))
	element := strings.HasPrefix(line[indent:], "- ")
	if l.hidden > 0 && (indent >= l.hidden || l.listed && element && indent+1 == l.hidden) {
		return hide(line, indent)
	}
	l.hidden = 0
	at, name, value, ok := field(line)
	ofHeader := l.header == indent+1 && holdsHeader[name]
	if l.header > indent {
		l.header = 0
	}
	switch {
	case ok && namesHeader[name] && IsSecret(value):
		l.header = nameAt(line) + 1 // the other fields of an element of a list are as far to the right as its first
	case ok && (ofHeader || IsSecret(name)):
		l.hidden, l.listed = indent+1, !element
		if opens[value] {
			return line
		}
		return line[:at] + redacted
	}
	return line[:indent] + inLine(Looks(line[indent:]))
}

// nameAt is where the name of a line's field begins.
func nameAt(line string) int {
	return len(line) - len(strings.TrimLeft(strings.TrimPrefix(strings.TrimLeft(line, " \t"), "- "), " "))
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
var opens = map[string]bool{"": true, "{": true, "[": true, "|": true, "|-": true, "|+": true, ">": true, ">-": true, ">+": true}

// field takes a line apart that is one of a message's fields; at is where its value begins.
func field(line string) (at int, name, value string, ok bool) {
	m := fieldLine().FindStringSubmatchIndex(line)
	if m == nil {
		return 0, "", "", false
	}
	name, value = line[m[2]:m[3]], line[m[6]:m[7]]
	return m[6], name, value, m[4] < m[5] || value == "{"
}
