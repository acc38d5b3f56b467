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

func TestSecretsOfSeveralLinesAreRemoved(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"a key": {"inline:\n-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIEvQIBADANBg\n  k0+/aa==\n-----END RSA PRIVATE KEY-----\nafter: x",
			"inline:\n[redacted]\nafter: x"},
		"a key that breaks off":                    {"a: -----BEGIN PRIVATE KEY-----\nMIIE\n[2026] x", "a: [redacted]\n[2026] x"},
		"a key with another line within":           {"-----BEGIN PRIVATE KEY-----\nMIIE\n[2026] x\nAAEE\nnobody's line\nBBEE==\n-----END PRIVATE KEY-----\ny", "[redacted]\n[2026] x\nnobody's line\ny"},
		"many lines of an access log within a key": {"-----BEGIN PRIVATE KEY-----\nMIIE\n" + strings.Repeat("GET /a 200\n", 700) + "AAEE\n-----END PRIVATE KEY-----\ny", "[redacted]\n" + strings.Repeat("GET /a 200\n", 700) + "y"},
		"another's text in a key's first line":     {"-----BEGIN PRIVATE KEY-----[2026] x\nMIIE\n-----END PRIVATE KEY-----\ny", "[redacted][2026] x\ny"},
		"a key in a text's first line":             {"a: -----BEGIN PRIVATE KEY-----MIIEvQIBADANBgkq\nAAEE\n-----END PRIVATE KEY-----\ny", "a: [redacted][redacted]\ny"},
		"another's text in lines of a key":         {"-----BEGIN PRIVATE KEY-----\nMIIE[2026] x\nAAEE{\"a\":1}\nGET /x 200MIIEvQIBADANBgkq\nMIIEvQIBADANBgkq by nobody\nBBEE\n-----END PRIVATE KEY-----\ny", "[redacted]\n[redacted][2026] x\n[redacted]{\"a\":1}\nGET /x [redacted]\n[redacted] by nobody\ny"},
		"another's text in a key's last line":      {"-----BEGIN PRIVATE KEY-----\nMIIE\nBB[2026] x-----END PRIVATE KEY-----[2026] y\nz", "[redacted]\n[redacted][2026] x[2026] y\nz"},
		"lines after a key without end":            {"-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("a b\n", maxForeignLines+1) + "word", "[redacted]\n" + strings.Repeat("a b\n", maxForeignLines+1) + "word"},
		"a certificate stays":                      {"-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----", "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----"},
		"a key in one line of a proto":             {`  inline_string: "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"`, `  inline_string: "[redacted]\n"`},
		"a field of a proto":                       {"tls_certificate {\n  private_key {\n    inline_bytes: \"abc\"\n    filename: \"/k\"\n  }\n  name: \"x\"\n}", "tls_certificate {\n  private_key {\n    inline_bytes: [redacted]\n    filename: \"/k\"\n  }\n  name: \"x\"\n}"},
		"a field of YAML":                          {"client:\n  clientSecret:\n    inline: |\n      abc\n      def\n  team: books\npassword: abc", "client:\n  clientSecret:\n    inline: |\n      [redacted]\n      [redacted]\n  team: books\npassword: [redacted]"},
		"a field of JSON":                          {"{\n \"api_key\": \"abc\",\n \"tokens\": [\n  \"a\",\n  \"b\"\n ],\n \"max\": 1\n}", "{\n \"api_key\": [redacted]\n \"tokens\": [\n  [redacted]\n  [redacted]\n ],\n \"max\": 1\n}"},
		"what has no secret":                       {"resources {\n  name: \"a\"\n  weight: 3\n}\nplain words here", "resources {\n  name: \"a\"\n  weight: 3\n}\nplain words here"},
		"a list as far left as its name":           {"tokens:\n- abc\n- def\nname: x", "tokens:\n[redacted]\n[redacted]\nname: x"},
		"a list within an element":                 {"- password:\n  - abc\n- name: x", "- password:\n  [redacted]\n- name: x"},
		"a header":                                 {"header {\n  key: \"x-api-key\"\n  value: \"abc\"\n}\nvalue: \"x\"", "header {\n  key: \"x-api-key\"\n  value: [redacted]\n}\nvalue: \"x\""},
		"a header of a list":                       {"- key: \"x-api-key\"\n  value: \"abc\"\n- key: \"b\"\n  value: \"c\"", "- key: \"x-api-key\"\n  value: [redacted]\n- key: \"b\"\n  value: \"c\""},
		"fields in one line":                       {"  name: \"x\" password: \"a\\\"bc\" more: 1 a { token { b { c: \"d\" } } }", "  name: \"x\" password: [redacted] more: 1 a { token [redacted] }"},
		"a text of several lines":                  {"  password: |+\n    abc\n  name: x\n  token: \"abc\n    def\"\n  b: c", "  password: |+\n    [redacted]\n  name: x\n  token: [redacted]\n    [redacted]\n  b: c"},
		"two keys without an end between":          {"-----BEGIN PRIVATE KEY-----\nAA\n-----END PRIVATE KEY----------BEGIN PRIVATE KEY-----\nBB\n-----END PRIVATE KEY-----\nx", "[redacted]\n[redacted]\nx"},
		"a key in quotes":                          {"  \"-----BEGIN PRIVATE KEY-----\\n\"\n  \"AA\\n\"\n  \"-----END PRIVATE KEY-----\\n\"\nx", "  \"[redacted]\nx"},
		"a key in a shell's text":                  {"-----BEGIN PRIVATE KEY-----\\\n  AA\\\n  -----END PRIVATE KEY-----\nx", "[redacted]\nx"},
		"what only looks like a secret":            {"  value: \"Bearer abcdefghijkl\"", "  value: \"[redacted]\""},
	} {
		if got := byLine(c.in); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, c.want)
		}
	}
}

var splitKey = []string{strings.Repeat("MIIEvQIB", 8), strings.Repeat("ADANBgkq", 8), strings.Repeat("hkiG9w0B", 8), "AQEF+/A="}

func wholeKey() string {
	return "-----BEGIN RSA PRIVATE KEY-----\n" + strings.Join(splitKey, "\n") + "\n-----END RSA PRIVATE KEY-----\n"
}

// TestKeyMixedWithOtherLinesIsRemoved: another process writes a line between two parts of a key, which may be split
// anywhere.
func TestKeyMixedWithOtherLinesIsRemoved(t *testing.T) {
	const others = "[2026-11-21 18:10:34.573][7749][debug] all is well\nGET /books 200\n"
	key := wholeKey()
	for cut := range key {
		got := byLine(key[:cut] + others + key[cut:] + "after it\n")
		if !strings.Contains(got, "GET /books 200\n") || !strings.Contains(got, "\nafter it") || !strings.Contains(got, "[2026-11-21 18:10:34.573][7749][debug] all is well\n") {
			t.Errorf("cut at %d, more than the key was removed:\n%s", cut, got)
		}
		for _, line := range splitKey {
			if strings.Contains(got, line[:8]) {
				t.Errorf("cut at %d, a part of the key remains:\n%s", cut, got)
			}
		}
	}
}

// TestKeyMixedWithPartsOfLinesIsRemoved: another process's writes split a key twice. Parts shorter than minPiece may
// remain. Writes to a pipe are split at page boundaries, never twice in one line.
func TestKeyMixedWithPartsOfLinesIsRemoved(t *testing.T) {
	key := wholeKey()
	for _, others := range []string{"GET /a ", " /books 20", "0 - -\nGET /boo", "0\n{\"a\":", "\n", "[2026-11-21 18:10:34.573][7749][debug] "} {
		for cut := range key {
			for again := cut + 80; again <= len(key); again += 7 {
				got := byLine(key[:cut] + others + key[cut:again] + others + key[again:] + "GET /after it\n")
				if !strings.Contains(got, "/after it\n") {
					t.Errorf("%q at %d and %d, more than the key was removed:\n%s", others, cut, again, got)
				}
				for _, line := range splitKey[:3] {
					for at := 0; at+minPiece <= len(line); at++ {
						if strings.Contains(got, line[at:at+minPiece]) {
							t.Fatalf("%q at %d and %d, a part of the key remains:\n%s", others, cut, again, got)
						}
					}
				}
			}
		}
	}
}

// TestKeyInOneLineIsRemoved: a key in one line is removed, regardless of the text after it.
func TestKeyInOneLineIsRemoved(t *testing.T) {
	const certificate = `-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----`
	for _, newline := range []string{`\n`, `\r\n`, `\\n`, "%0A", " "} {
		key := "-----BEGIN RSA PRIVATE KEY-----" + newline + strings.Join(splitKey, newline) + newline
		end := "-----END RSA PRIVATE KEY-----"
		for _, c := range []struct{ in, want string }{
			{"x " + key + end + certificate, "x [redacted]" + certificate},
			{certificate + key + end + " -----BEGIN", certificate + "[redacted] -----BEGIN"},
			{"x " + key, "x [redacted]"},
			{"x " + key[:len(key)-20], "x [redacted]"},
			{"x " + key + end[:20], "x [redacted]"},
			{"x " + key + " " + key + end + " y", "x [redacted] y"},
			{"x " + key + end + " " + key + end + " y", "x [redacted] [redacted] y"},
		} {
			if got := byLine(c.in); got != c.want {
				t.Errorf("%s: got\n%s\nwant\n%s", c.in, got, c.want)
			}
		}
	}
	line := "-----BEGIN PRIVATE KEY-----" + strings.Join(splitKey, `\n`) + `\n`
	if got := byLine("x " + line); strings.Contains(got, splitKey[1][:minPiece]) {
		t.Errorf("a part of the key remains: %s", got)
	}
}

// TestCertificateWithinAKeyIsNotItsEnd: a certificate that another process writes between two lines of a key does not
// end the key.
func TestCertificateWithinAKeyIsNotItsEnd(t *testing.T) {
	const begin, end = "[x] -----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
	in := strings.Join([]string{"-----BEGIN PRIVATE KEY-----", splitKey[0], begin, splitKey[1], end, splitKey[2], "-----END PRIVATE KEY-----", "y"}, "\n")
	if got, want := byLine(in), "[redacted]\n"+begin+"\n"+end+"\ny"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// Clients determine the content of access logs, so searching for keys must be cheap.
func BenchmarkLinesFullOfMarks(b *testing.B) {
	line := strings.Repeat("-----BEGIN PRIVATE KEY-----", 300) + "-----BEGIN A PRIVATE KEY----- " + keyEnds
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		var l Lines
		l.Key(line)
	}
}

func TestPublicKeysStay(t *testing.T) {
	const text = "-----BEGIN PUBLIC KEY-----\nMIIEvQIBADANBgkqMIIEvQIBADANBgkq\n-----END PUBLIC KEY-----\nx\n-----BEGIN PRIVATE KEY is missing\nMIIEvQIBADANBgkqMIIEvQIBADANBgkq\n"
	if got := byLine(text); got != text {
		t.Errorf("got\n%s", got)
	}
}

func TestSecretsInFirstLineAreRemoved(t *testing.T) {
	for in, want := range map[string]string{
		"[x] private_key {\n  inline_string: \"abc\"\n}\nname: \"x\"": "[x] private_key {\n  inline_string: [redacted]\n}\nname: \"x\"",
		"[x] a: \"password\": {\n  \"a\": \"abc\"\n}":                 "[x] a: \"password\": {\n  \"a\": [redacted]\n}",
		"[x] tokens:\n  - abc":                                        "[x] tokens:\n  [redacted]",
		"[x] private_key { inline_string: \"abc\" } b: 1":             "[x] private_key [redacted] b: 1",
		`{"level":"info","msg":"token: \"abc\", a: \"b\""}`:           `{"level":"info","msg":"token: [redacted], a: \"b\""}`,
		"[x] the token \"istio-token\" is expired\n  why: late":       "[x] the token \"istio-token\" is expired\n  why: late",
		`[x] a {client_secret: "abc"} b: "c"`:                         `[x] a {client_secret: [redacted]} b: "c"`,
		"[x] resources {\n  name: \"a\"\n}":                           "[x] resources {\n  name: \"a\"\n}",
	} {
		var l Lines
		var out []string
		for i, line := range strings.Split(in, "\n") {
			if i == 0 {
				out = append(out, l.Begin(line))
			} else {
				out = append(out, l.Field(line))
			}
		}
		if got := strings.Join(out, "\n"); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func BenchmarkBegin(b *testing.B) {
	line := `{"level":"debug","time":"2026-11-22T01:02:03.123Z","scope":"http","msg":"[C12][S345] router decoding headers:"}` + strings.Repeat(" upstream_cluster", 10)
	var l Lines
	for b.Loop() {
		l.Begin(line)
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
