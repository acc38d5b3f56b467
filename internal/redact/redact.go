// Package redact removes secrets from logs, dumps and printed settings.
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

// redacted is printed in place of a secret.
const redacted = "[redacted]"

// maxJSONDepth limits the nesting of JSON. Envoy's configuration is nested far less deeply. maxTextDepth limits the
// nesting of JSON within strings in JSON.
const (
	maxJSONDepth = 256
	maxTextDepth = 4
)

// secretNames matches the names of fields and headers whose values are secret: in Envoy's configuration, in the
// configuration of filters, and in user metadata.
var secretNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)password|passphrase|passwd|private[_-]?key|token|api[_-]?key|access[_-]?key|authorization|cookie|credential|[a-z0-9_-]secret$|hmac|session[_-]?ticket|secret[_-]?key|signing[_-]?key` +
		`|encryption[_-]?key|pwd$|[_.-](pass|auth|psk)$|(?-i:SECRET)`)
})

// secretTexts matches texts that are recognizable as secrets, whatever field they are in: keys, tokens, passwords in
// URLs, and signatures of URLs.
var secretTexts = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?is)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)` +
		`|\bbearer [a-z0-9._~+/=-]{8,}|\bbasic [a-z0-9+/=]{8,}|\beyJ[a-z0-9_-]{8,}\.[a-z0-9_-]{8,}\.[a-z0-9_-]*` +
		`|[a-z][a-z0-9+.-]*://[^/@\s?#"]+@` +
		// Tokens of well-known services, and private keys in base64.
		`|(?-i:\b(?:(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[0-9A-Za-z_-]{35}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{20,}` +
		`|xox[abeoprs]-[A-Za-z0-9-]{10,}|[rs]k_(?:live|test)_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{32,}|hv[bs]\.[A-Za-z0-9_-]{20,}|npm_[A-Za-z0-9]{36}|dckr_pat_[A-Za-z0-9_-]{20,}))` +
		`|(?-i:LS0tLS1CRUdJTiB(?:QUklWQVRF|SU0EgUFJJVkFUR|FQyBQUklWQVRF|PUEVOU1NIIFBSSVZBVEU|FTkNSWVBURUQgUFJJVkFUR)[A-Za-z0-9+/=]*)` +
		`|[?&](x-(amz|goog)-(signature|security-token)|sig|signature|[a-z_-]*token|api[_-]?key|password|secret)=[^&\s"'<>]+`)
})

// locations are fields within a secret that contain its location instead of its value.
var locations = map[string]bool{"@type": true, "filename": true, "path": true, "watched_directory": true, "provider_name": true, "name": true}

// JSON copies JSON and removes secrets: the values of fields and headers whose names indicate a secret, and strings
// that look like secrets. It has only one value in memory at a time.
func JSON(to io.Writer, from io.Reader) error {
	in := json.NewDecoder(from)
	in.UseNumber()
	out := bufio.NewWriter(to)
	r := &redactor{in: in, out: out}
	if err := r.value("", false, 0); err != nil {
		return fmt.Errorf("removing secrets from JSON: %w", err)
	}
	if err := out.WriteByte('\n'); err != nil {
		return err
	}
	return out.Flush()
}

type redactor struct {
	in  *json.Decoder
	out *bufio.Writer
	// textDepth is the number of JSON strings that enclose the current JSON. found is true if the current JSON
	// contained a secret.
	textDepth int
	found     bool
}

// value copies one value. name is the name of its field. hidden reports whether the value belongs to a secret.
func (r *redactor) value(name string, hidden bool, depth int) error {
	if depth > maxJSONDepth {
		return fmt.Errorf("the JSON is nested deeper than %d levels", maxJSONDepth)
	}
	t, err := r.in.Token()
	if err != nil {
		return unexpectedEOF(err)
	}
	switch v := t.(type) {
	case json.Delim:
		if v == '[' {
			return r.array(name, hidden, depth)
		}
		return r.object(hidden, depth)
	case string:
		if hidden && !locations[name] {
			r.found = true
			return r.write(redacted)
		}
		return r.write(r.text(v))
	}
	return r.write(t)
}

// text returns a string without its secrets. Some filters have JSON configuration in a string.
func (r *redactor) text(v string) string {
	if inner, ok := redactEmbedded(v, r.textDepth); ok {
		r.found = true
		v = inner
	}
	if mayContainSecret(v) && secretTexts().MatchString(v) {
		r.found = true
		return redacted
	}
	return v
}

// redactEmbedded returns a JSON text without its secrets, or "[redacted]" if it is nested too deeply. The second result
// is false if the text is not JSON or contains no secrets. within is the number of JSON strings that enclose the text.
func redactEmbedded(text string, within int) (string, bool) {
	trimmed := strings.TrimSpace(text)
	if len(trimmed) < 2 || trimmed[0] != '{' && trimmed[0] != '[' || !json.Valid([]byte(trimmed)) {
		return "", false
	}
	if within == maxTextDepth {
		return redacted, true
	}
	var clean bytes.Buffer
	r := &redactor{in: json.NewDecoder(strings.NewReader(trimmed)), out: bufio.NewWriter(&clean), textDepth: within + 1}
	r.in.UseNumber()
	if r.value("", false, 0) != nil || r.out.Flush() != nil {
		return redacted, true
	}
	return clean.String(), r.found
}

// unexpectedEOF returns io.ErrUnexpectedEOF for io.EOF, because the JSON is incomplete. It returns other errors
// unchanged.
func unexpectedEOF(err error) error {
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

// object copies an object. In Envoy's configuration a header is {"key": …, "value": …}, in this order.
func (r *redactor) object(hidden bool, depth int) error {
	_ = r.out.WriteByte('{')
	header := false
	for first := true; r.in.More(); first = false {
		t, err := r.in.Token()
		if err != nil {
			return unexpectedEOF(err)
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
			header, err = r.copyHeaderName(depth)
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

// copyHeaderName copies a value that may be the name of a header. It reports whether the name indicates a secret.
func (r *redactor) copyHeaderName(depth int) (bool, error) {
	t, err := r.in.Token()
	if err != nil {
		return false, unexpectedEOF(err)
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
		return unexpectedEOF(err)
	}
	return r.out.WriteByte(with)
}

// Text returns a text without parts that look like secrets. If the text is JSON, it also removes the values of fields
// whose names indicate a secret.
func Text(text string) string {
	if clean, ok := redactEmbedded(text, 0); ok {
		text = clean
	}
	return RedactPatterns(text)
}

// RedactPatterns returns a text without parts that look like secrets.
func RedactPatterns(text string) string {
	if !mayContainSecret(text) || !secretTexts().MatchString(text) {
		return text
	}
	return strings.TrimSpace(secretTexts().ReplaceAllString(text, redacted))
}

// mayContainSecret reports whether a text may contain a secret. Every text that secretTexts matches contains one of the
// substrings for which mayContainSecret searches. It is a hundred times faster than the regular expression, and Envoy
// may log thousands of lines per second.
func mayContainSecret(text string) bool {
	return strings.Contains(text, "-----") || strings.Contains(text, "://") && strings.Contains(text, "@") ||
		strings.Contains(text, "=") && strings.ContainsAny(text, "?&") || hasBeginning(text) ||
		strings.Contains(text, "\u017f") // the long s, which matches s in a case-insensitive expression
}

// beginnings are the first characters of well-known kinds of credentials, in lower case.
var beginnings = []string{
	"bearer ", "basic ", "eyj", "akia", "asia", "aiza", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_", "glpat-", "xox", "rk_", "sk_", "sk-",
	"hvb.", "hvs.", "npm_", "dckr_pat_", "ls0tls1crudjtib", // base64 of "-----BEGIN "
}

// firstLetters is a bit set of the first letters of beginnings.
var firstLetters = func() (letters uint32) {
	for _, b := range beginnings {
		letters |= 1 << (b[0] - 'a')
	}
	return letters
}()

func hasBeginning(text string) bool {
	for i := range len(text) {
		if c := text[i] | 0x20; c < 'a' || c > 'z' || firstLetters&(1<<(c-'a')) == 0 {
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

// harmlessNames matches names that contain a word for secrets but whose values are not secret, for example a file's
// path.
var harmlessNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)(name|file|path|dir|directory|ttl|lifetime|audiences?|issuer|type|provider|header|port|signer|enabled)$`)
})

// IsSecretSetting reports whether the name of a setting, a metadata entry or a label indicates a secret value.
func IsSecretSetting(name string) bool {
	return (IsSecret(name) || strings.Contains(strings.ToLower(name), "secret")) && !harmlessNames().MatchString(name)
}

// Labels returns a copy of labels with redacted secret values.
func Labels(labels map[string]string) map[string]string {
	shown := make(map[string]string, len(labels))
	for name, value := range labels {
		shown[name] = Text(value)
		if value != "" && IsSecretSetting(name) {
			shown[name] = redacted
		}
	}
	return shown
}

// IsSecret reports whether the name of a field or header indicates a secret value.
func IsSecret(name string) bool { return secretNames().MatchString(name) }
