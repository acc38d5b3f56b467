package redact

import (
	"regexp"
	"strings"
	"sync"
)

// markEnd returns the end of the PEM mark of a private key, for example "-----BEGIN RSA PRIVATE KEY-----". from is the
// position of the mark's label, after "BEGIN ". The result is negative if the text at from does not belong to such a
// mark.
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

// findMark returns the start and end of the first PEM mark of a private key. begins is the beginning of the mark:
// "-----BEGIN " or "-----END ". from is negative if there is no mark.
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

// removeKeys replaces the private keys within one line with "[redacted]". before is the resulting text. Their line ends
// may be encoded in any way, for example as \n. If the end mark of the last key is missing, open is true, before ends
// at its begin mark, and after is the text after that mark. removeKeys does not use a regular expression, because that
// would be a hundred times slower, and clients can determine the content of access logs.
func removeKeys(line string) (before, after string, open bool) {
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

// redactAfterMark returns the text after a key's begin mark without the parts that may belong to the key.
func redactAfterMark(after string) string {
	text := strings.TrimLeft(after, " \t")
	switch {
	case trimEnds(after) == "", text[0] == '\\', text[0] == '%': // a key with encoded line ends
		return ""
	case len(text) < len(after) && base64Length(text, 0) >= minKey: // a key with spaces in place of line ends
		return ""
	}
	return redactPieces(after)
}

// base64Length returns the length of the base64 text at the position at. Such a text may be part of a key.
func base64Length(line string, at int) int {
	n := 0
	for at+n < len(line) && base64Byte(line[at+n]) {
		n++
	}
	return n
}

// redactPieces redacts possible parts of a key at the beginning and end of a line, and next to encoded line ends.
// Several processes write to one log, and the text of one can interrupt that of another at any position.
func redactPieces(line string) string {
	var b strings.Builder
	for at := 0; at < len(line); {
		n := base64Length(line, at)
		if n == 0 {
			b.WriteByte(line[at])
			at++
			continue
		}
		end := at + n
		atEnd := at == 0 || end == len(line) || line[at-1] == '\\' || line[end] == '\\'
		begins := at == 0 && end < len(line) && (line[end] == '[' || line[end] == '{') // a log line begins after the piece
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

// isOtherPEM reports whether a line contains PEM marks, but none of a private key, for example those of a certificate.
// Such a line does not end a key.
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
