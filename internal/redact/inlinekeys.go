package redact

import (
	"regexp"
	"strings"
	"sync"
)

// markEnd is where the mark of a private key ends whose label begins at from, less than 0 if it is none.
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

// findMark is where the first mark of a private key is that begins so; from is less than 0 if there is none.
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

// withoutKeys leaves out the private keys that are in one line, with whatever stands for the ends of lines. Of one that
// does not end there it gives what follows its mark. An expression for this costs a hundred times as much, and what an
// access log says is up to callers.
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

// afterMark is what may be shown of what follows a key's first mark in its line.
func afterMark(after string) string {
	text := strings.TrimLeft(after, " \t")
	switch {
	case trimEnds(after) == "", text[0] == '\\', text[0] == '%': // a key in one line
		return ""
	case len(text) < len(after) && pieceAt(text, 0) >= leastKey: // with blanks for the ends of lines
		return ""
	}
	return withoutPieces(after)
}

// pieceAt is how long the text at a place is that may be a piece of a key's line.
func pieceAt(line string, at int) int {
	n := 0
	for at+n < len(line) && base64Byte(line[at+n]) {
		n++
	}
	return n
}

// withoutPieces leaves out of a line what a line of a key left at its ends, or beside what stands for the end of a line: the
// writes of several writers are cut anywhere.
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
		begins := at == 0 && end < len(line) && (line[end] == '[' || line[end] == '{') // as lines of logs begin
		if atEnd && n >= leastPiece || begins {
			b.WriteString(redacted)
		} else {
			b.WriteString(line[at:end])
		}
		at = end
	}
	return b.String()
}

var anyMark = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`-----(?:BEGIN|END) [A-Z0-9 ]*-----`) })

// ofAnother says whether what marks are in a line are of something else than a private key, like a certificate: that is
// another's text, and no end of a key.
func ofAnother(line string) bool {
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
	return others && !strings.Contains(rest, keyBegins) && !strings.Contains(rest, keyEnds) && !restOfMark(rest)
}
