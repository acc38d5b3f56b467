package redact

import (
	"strings"
	"testing"
)

func byLine(text string) string {
	var l Lines
	var out []string
	for line := range strings.SplitSeq(text, "\n") {
		rest, all := l.Key(line)
		if all {
			continue
		}
		out = append(out, l.Field(rest))
	}
	return strings.Join(out, "\n")
}

func TestSecretsOverSeveralLinesAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a key": {"inline:\n-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEvQIBADANBg\n  k0+/aa==\n-----END RSA PRIVATE KEY-----\nafter: x",
			"inline:\n[redacted]\nafter: x"},
		"a key that breaks off":         {"a: -----BEGIN PRIVATE KEY-----\nMIIE\n[2026] x", "a: [redacted]\n[2026] x"},
		"a certificate stays":           {"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----"},
		"a key in one line of a proto":  {`  inline_string: "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"`, `  inline_string: "[redacted]\n"`},
		"a field of a proto":            {"tls_certificate {\n  private_key {\n    inline_bytes: \"abc\"\n    filename: \"/k\"\n  }\n  name: \"x\"\n}", "tls_certificate {\n  private_key {\n    inline_bytes: [redacted]\n    filename: \"/k\"\n  }\n  name: \"x\"\n}"},
		"a field of YAML":               {"client:\n  clientSecret:\n    inline: |\n      abc\n      def\n  team: books\npassword: abc", "client:\n  clientSecret:\n    inline: |\n      [redacted]\n      [redacted]\n  team: books\npassword: [redacted]"},
		"a field of JSON":               {"{\n \"api_key\": \"abc\",\n \"tokens\": [\n  \"a\",\n  \"b\"\n ],\n \"max\": 1\n}", "{\n \"api_key\": [redacted]\n \"tokens\": [\n  [redacted]\n  [redacted]\n ],\n \"max\": 1\n}"},
		"what has no secret":            {"resources {\n  name: \"a\"\n  weight: 3\n}\nplain words here", "resources {\n  name: \"a\"\n  weight: 3\n}\nplain words here"},
		"what only looks like a secret": {"  value: \"Bearer abcdefghijkl\"", "  value: \"[redacted]\""},
	} {
		if got := byLine(c.in); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\npassword {\n  a: b\n}", "c2VjcmV0c2VjcmV0")
	f.Fuzz(func(t *testing.T, before, key string) {
		byLine(before) // no panic
		for i := range len(key) {
			if c := key[i]; !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9') {
				return
			}
		}
		text := "x\n-----BEGIN PRIVATE KEY-----\n" + key + "\n-----END PRIVATE KEY-----\ny"
		if got := byLine(text); got != "x\n[redacted]\ny" {
			t.Errorf("%q", got)
		}
	})
}
