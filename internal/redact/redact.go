// Package redact leaves secrets out of what people and files get to see.
package redact

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
)

// redacted stands where a secret was.
const redacted = "[redacted]"

// deepestJSON bounds the nesting of what is redacted; Envoy's own configuration stays far below. deepestText bounds that of
// JSON in texts of JSON, which nobody reads.
const (
	deepestJSON = 256
	deepestText = 4
)

// secretNames are parts of the names of fields and headers whose values are nobody's business: in Envoy's own
// configuration, in that of filters, and in what users put into metadata.
var secretNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)password|passphrase|passwd|private[_-]?key|token|api[_-]?key|access[_-]?key|authorization|cookie|credential|[a-z0-9_-]secret$|hmac|session[_-]?ticket|secret[_-]?key|signing[_-]?key`)
})

// secretTexts are secrets by their own looks, wherever they stand: keys as a whole, and signed URLs.
var secretTexts = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
		`|\bbearer [a-z0-9._~+/=-]{8,}|\bbasic [a-z0-9+/=]{8,}|\beyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]*` +
		`|[a-z][a-z0-9+.-]*://[^/@\s?#"]+@` +
		`|[?&](x-(amz|goog)-(signature|security-token)|sig|signature|[a-z_-]*token|api[_-]?key|password|secret)=[^&\s"'<>]+`)
})

// places are texts within a secret that say where it is, not what it is.
var places = map[string]bool{"@type": true, "filename": true, "path": true, "watched_directory": true, "provider_name": true, "name": true}

// JSON copies JSON and leaves secrets out: the values of fields and headers that are named as secrets are, and texts that
// look like them. It holds no more than one value in memory at a time.
func JSON(to io.Writer, from io.Reader) error {
	in := json.NewDecoder(from)
	in.UseNumber()
	out := bufio.NewWriter(to)
	r := &redactor{in: in, out: out}
	if err := r.value("", false, 0); err != nil {
		return fmt.Errorf("leaving secrets out of JSON: %w", err)
	}
	if err := out.WriteByte('\n'); err != nil {
		return err
	}
	return out.Flush()
}

type redactor struct {
	in  *json.Decoder
	out *bufio.Writer
	// within counts the texts that the JSON is in; found says that there was a secret.
	within int
	found  bool
}

// value copies one value. The name is that of the field that it is the value of, and hidden says that it is of a secret.
func (r *redactor) value(name string, hidden bool, depth int) error {
	if depth > deepestJSON {
		return fmt.Errorf("nested deeper than %d", deepestJSON)
	}
	t, err := r.in.Token()
	if err != nil {
		return atEnd(err)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '[' {
			return r.array(name, hidden, depth)
		}
		return r.object(hidden, depth)
	case string:
		if hidden && !places[name] {
			r.found = true
			return r.write(redacted)
		}
		return r.write(r.text(v))
	}
	return r.write(t)
}

// text is a text that is not of a secret, without those that it holds: filters have configuration that is JSON in a text.
func (r *redactor) text(v string) string {
	if inner, ok := withoutEmbedded(v, r.within); ok {
		r.found = true
		v = inner
	}
	if mayHold(v) && secretTexts().MatchString(v) {
		r.found = true
		return redacted
	}
	return v
}

// withoutEmbedded is the JSON in a text without its secrets, if it is that and has some.
func withoutEmbedded(text string, within int) (string, bool) {
	trimmed := strings.TrimSpace(text)
	if len(trimmed) < 2 || trimmed[0] != '{' && trimmed[0] != '[' || !json.Valid([]byte(trimmed)) {
		return "", false
	}
	if within == deepestText {
		return redacted, true
	}
	var clean bytes.Buffer
	r := &redactor{in: json.NewDecoder(strings.NewReader(trimmed)), out: bufio.NewWriter(&clean), within: within + 1}
	r.in.UseNumber()
	if r.value("", false, 0) != nil || r.out.Flush() != nil {
		return redacted, true
	}
	return clean.String(), r.found
}

// atEnd makes an error of an end that came too early.
func atEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *redactor) write(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = r.out.Write(text)
	}
	return err
}

func (r *redactor) array(name string, hidden bool, depth int) error {
	_ = r.out.WriteByte('[')
	for first := true; r.in.More(); first = false {
		if !first {
			_ = r.out.WriteByte(',')
		}
		if err := r.value(name, hidden, depth+1); err != nil {
			return err
		}
	}
	return r.close(']')
}

// object copies a list of fields. In Envoy's configuration a header is {"key": …, "value": …}, in that order.
func (r *redactor) object(hidden bool, depth int) error {
	_ = r.out.WriteByte('{')
	header := false
	for first := true; r.in.More(); first = false {
		t, err := r.in.Token()
		if err != nil {
			return atEnd(err)
		}
		name, _ := t.(string)
		if !first {
			_ = r.out.WriteByte(',')
		}
		if err := r.write(name); err != nil {
			return err
		}
		_ = r.out.WriteByte(':')
		switch {
		case !hidden && namesHeader[name]:
			header, err = r.headerName(depth)
		default:
			err = r.value(name, hidden || secretNames().MatchString(name) || header && holdsHeader[name], depth+1)
		}
		if err != nil {
			return err
		}
	}
	return r.close('}')
}

var (
	namesHeader = map[string]bool{"key": true, "header_name": true, "header": true}
	holdsHeader = map[string]bool{"value": true, "raw_value": true, "string_value": true, "exact_match": true, "string_match": true}
)

// headerName copies what may be the name of a header, and says whether that header is a secret.
func (r *redactor) headerName(depth int) (bool, error) {
	t, err := r.in.Token()
	if err != nil {
		return false, atEnd(err)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '[' {
			return false, r.array("", false, depth+1)
		}
		return false, r.object(false, depth+1)
	case string:
		return secretNames().MatchString(v), r.write(r.text(v))
	}
	return false, r.write(t)
}

func (r *redactor) close(with byte) error {
	if _, err := r.in.Token(); err != nil {
		return atEnd(err)
	}
	return r.out.WriteByte(with)
}

// Text leaves out of a text what looks like a secret, and what is named as one if it is JSON.
func Text(text string) string {
	if clean, ok := withoutEmbedded(text, 0); ok {
		text = clean
	}
	return Looks(text)
}

// Looks leaves out of a text what looks like a secret, wherever it stands.
func Looks(text string) string {
	if !mayHold(text) || !secretTexts().MatchString(text) {
		return text
	}
	return strings.TrimSpace(secretTexts().ReplaceAllString(text, redacted))
}

// mayHold says whether a text has what each secret by its looks has: the expression costs a hundred times as much, and Envoy
// may write thousands of lines a second.
func mayHold(text string) bool {
	return strings.Contains(text, "-----") || strings.Contains(text, "://") && strings.Contains(text, "@") ||
		strings.Contains(text, "=") && strings.ContainsAny(text, "?&") || hasBeginning(text) ||
		strings.Contains(text, "\u017f") // which the expression takes for an s
}

// beginnings are what credentials begin with, in small letters.
var beginnings = []string{"bearer ", "basic ", "eyj"}

func hasBeginning(text string) bool {
	for i := range len(text) {
		if c := text[i] | 0x20; c != 'b' && c != 'e' {
			continue
		}
		for _, b := range beginnings {
			if len(text)-i >= len(b) && strings.EqualFold(text[i:i+len(b)], b) {
				return true
			}
		}
	}
	return false
}

// IsSecret says whether a field or header of that name is one whose value is nobody's business.
func IsSecret(name string) bool { return secretNames().MatchString(name) }
