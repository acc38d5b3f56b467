package redact

import (
	"regexp"
	"strings"
	"sync"
)

// markEnd returns where the PEM mark of a private key ends whose label begins at from, or a negative number if there is
// none.
func markEnd(line string, from int) int {
	at := from
	for at < len(line) && (line[at] == ' ' || line[at] >= 'A' && line[at] <= 'Z') {
		at++
	}
	end := at + len(markDashes)
	if at-len(keyMark)+len(markDashes) < from || end > len(line) || line[end-len(keyMark):end] != keyMark {
		return -1
	}
	return end
}

// findMark returns the position of the first PEM mark of a private key with that beginning. from is negative if there
// is none.
func findMark(line, begins string) (from, to int) {
	for at := 0; ; {
		n := strings.Index(line[at:], begins)
		if n < 0 {
			return -1, -1
		}
		from, at = at+n, at+n+len(begins)
		if to = markEnd(line, at); to >= 0 {
			return from, to
		}
	}
}

// withoutKeys removes the private keys that lie within one line, whatever encodes their line ends. If the last key does
// not end in the line, open is true and after is the text after its mark. It uses no regular expression, which is a
// hundred times slower: clients control what an access log contains.
func withoutKeys(line string) (before, after string, open bool) {
	var b strings.Builder
	for {
		from, to := findMark(line, keyBegins)
		if from < 0 {
			return b.String() + line, "", false
		}
		b.WriteString(line[:from] + redacted)
		line = line[to:]
		_, end := findMark(line, keyEnds)
		if end < 0 {
			return b.String(), line, true
		}
		line = line[end:]
	}
}

// afterMark returns the part of the text after a key's first mark that may be printed.
func afterMark(after string) string {
	text := strings.TrimLeft(after, " \t")
	switch {
	case trimEnds(after) == "", text[0] == '\\', text[0] == '%': // a key in one line
		return ""
	case len(text) < len(after) && pieceAt(text, 0) >= minKey: // with spaces in place of line ends
		return ""
	}
	return withoutPieces(after)
}

// pieceAt returns the length of the text at a position that could belong to a line of a key.
func pieceAt(line string, at int) int {
	n := 0
	for at+n < len(line) && base64Byte(line[at+n]) {
		n++
	}
	return n
}

// withoutPieces removes parts of a key's line from the ends of a line and from around encoded line ends. Several
// writers share a log, and their writes can be split anywhere.
func withoutPieces(line string) string {
	var b strings.Builder
	for at := 0; at < len(line); {
		n := pieceAt(line, at)
		if n == 0 {
			b.WriteByte(line[at])
			at++
			continue
		}
		end := at + n
		atEnd := at == 0 || end == len(line) || line[at-1] == '\\' || line[end] == '\\'
		begins := at == 0 && end < len(line) && (line[end] == '[' || line[end] == '{') // the beginning of a log line
		if atEnd && n >= minPiece || begins {
			b.WriteString(redacted)
		} else {
			b.WriteString(line[at:end])
		}
		at = end
	}
	return b.String()
}

var anyMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----(?:BEGIN|END) [A-Z0-9 ]*-----`) })

// isOtherPEM reports whether all PEM marks in a line belong to something other than a private key, for example a
// certificate. Such a line does not end a key.
func isOtherPEM(line string) bool {
	if !strings.Contains(line, markDashes) {
		return false
	}
	others := false
	rest := anyMark().ReplaceAllStringFunc(line, func(mark string) string {
		if strings.HasSuffix(mark, keyMark) {
			return mark
		}
		others = true
		return ""
	})
	return others && !strings.Contains(rest, keyBegins) && !strings.Contains(rest, keyEnds) && !isMarkRest(rest)
}
