package redact

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func redactedText(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	if err := JSON(&out, strings.NewReader(text)); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return strings.TrimSpace(out.String())
}

func TestJSONRemovesSecrets(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"private_key": {"inline_bytes": "c2VjcmV0"}}`, `{"private_key":{"inline_bytes":"[redacted]"}}`},
		{`{"private_key": {"filename": "/etc/key.pem"}}`, `{"private_key":{"filename":"/etc/key.pem"}}`},
		{`{"request_headers_to_add": [{"header": {"key": "Authorization", "value": "abc"}, "append": true}]}`,
			`{"request_headers_to_add":[{"header":{"key":"Authorization","value":"[redacted]"},"append":true}]}`},
		{`{"initial_metadata": [{"key": "x-api-key", "value": "abc"}, {"key": "x-team", "value": "books"}]}`,
			`{"initial_metadata":[{"key":"x-api-key","value":"[redacted]"},{"key":"x-team","value":"books"}]}`},
		{`{"access_token": "abc", "max_tokens": 100, "rate": 0.50}`, `{"access_token":"[redacted]","max_tokens":100,"rate":0.50}`},
		{`{"tls_certificate_sds_secret_configs": [{"name": "default"}]}`, `{"tls_certificate_sds_secret_configs":[{"name":"default"}]}`},
		{`{"text": "-----BEGIN EC PRIVATE KEY-----\nabc"}`, `{"text":"[redacted]"}`},
		{`["Bearer abcdefghijkl", "postgres://user:word@db/x", "https://example.com/a:b"]`, `["[redacted]","[redacted]","https://example.com/a:b"]`},
		{`{"password_list": ["a", ["b"]], "x": null, "y": true}`, `{"password_list":["[redacted]",["[redacted]"]],"x":null,"y":true}`},
		{`{"name": "authorization", "string_match": {"exact": "abc"}}`, `{"name":"authorization","string_match":{"exact":"abc"}}`},
		{`{"key": {"key": "cookie", "value": "a"}, "value": "b"}`, `{"key":{"key":"cookie","value":"[redacted]"},"value":"b"}`},
		{`{"MY_SECRET": "abc", "clientSecret": "abc", "secret": {"name": "default"}}`, `{"MY_SECRET":"[redacted]","clientSecret":"[redacted]","secret":{"name":"default"}}`},
		{`{"configuration": {"value": "{\"rules\": [{\"credentials\": [\"a:b\"]}], \"n\": 1e3}"}}`, `{"configuration":{"value":"{\"rules\":[{\"credentials\":[\"[redacted]\"]}],\"n\":1e3}"}}`},
		{`{"value": "{ \"team\": \"books\" }"}`, `{"value":"{ \"team\": \"books\" }"}`},
		{`{"uri": "https://b.s3.example/m.wasm?X-Amz-Date=1&X-Amz-Signature=abcd"}`, `{"uri":"[redacted]"}`},
		{`{"uri": "https://ghp_abc@example.com/m.wasm", "mail": "https://example.com/@me"}`, `{"uri":"[redacted]","mail":"https://example.com/@me"}`},
		{`{"metadata": {"DB_PASS": "a", "REGISTRY_AUTH": "b", "DB_SECRET_V2": "c", "CLUSTER_ID": "d", "PUBLIC_KEY": "e", "CERT_SIGNER": "f"}}`,
			`{"metadata":{"DB_PASS":"[redacted]","REGISTRY_AUTH":"[redacted]","DB_SECRET_V2":"[redacted]","CLUSTER_ID":"d","PUBLIC_KEY":"e","CERT_SIGNER":"f"}}`},
		{`"plain"`, `"plain"`},
	} {
		if got := redactedText(t, c.in); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.in, got, c.want)
		}
	}
}

func TestTextRemovesSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"rejected: -----BEGIN PRIVATE KEY-----\nMIIE\nabc=\n-----END PRIVATE KEY----- in it": "rejected: [redacted] in it",
		`rejected: "-----BEGIN RSA PRIVATE KEY-----\nMIIE`:                                   `rejected: "[redacted]`,
		"with eyJhbGciOiJS.eyJzdWIiOiJh.c2lnbmF0dXJl it failed":                              "with [redacted] it failed",
		"https://s/m.wasm?a=b&sig=xyz: 403":                                                  "https://s/m.wasm?a=b[redacted] 403",
		`{"password": "abc", "a": "{\"token\": \"x\"}"}`:                                     `{"password":"[redacted]","a":"{\"token\":\"[redacted]\"}"}`,
		`{"a": [1, 2]}`:       `{"a": [1, 2]}`,
		"listener a: invalid": "listener a: invalid",
	} {
		if got := Text(in); got != want {
			t.Errorf("%s:\n got %s\nwant %s", in, got, want)
		}
	}
}

func TestLooksRecognizesSecrets(t *testing.T) {
	const letters = "0123456789abcdefghijABCDEFGHIJ0123456789"
	for _, secret := range []string{
		"AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE", "AIza" + letters[:35], "ghp_" + letters[:36], "gho_" + letters[:36], "github_pat_" + letters[:22],
		"glpat-" + letters[:20], "xoxb-1234567890-abcdef", "sk_live_" + letters[:24], "rk_test_" + letters[:24], "sk-" + letters, "sk-proj-" + letters,
		"hvs." + letters[:24], "hvb." + letters[:24], "npm_" + letters[:36], "dckr_pat_" + letters[:27],
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY-----\nMIIE")),
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN RSA PRIVATE KEY-----\nMIIE")),
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN EC PRIVATE KEY-----\nMIIE")),
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN OPENSSH PRIVATE KEY-----\nMIIE")),
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIE")),
	} {
		if got := Text("value " + secret + ", more"); got != "value [redacted], more" {
			t.Errorf("%s is shown as %s", secret, got)
		}
	}
	for _, harmless := range []string{
		"asia-southeast1-docker.pkg.dev", "asiapacificregion1234567", "task-" + letters, "risk-assessment", "Kubernetes", "xoxo", "npm_config_cache",
		"-----BEGIN PUBLIC KEY-----", "sha256:" + strings.Repeat("0a", 32), "spiffe://cluster.local/ns/default/sa/reviews",
		base64.StdEncoding.EncodeToString([]byte("-----BEGIN CERTIFICATE-----\nMIIE")), "ghosts", "sk-learn", "glpat", "AKIA",
	} {
		if got := Text(harmless); got != harmless {
			t.Errorf("%s is shown as %s", harmless, got)
		}
	}
}

func TestLabelsWithSecretsAreHidden(t *testing.T) {
	got := Labels(map[string]string{"app": "reviews", "db-password": "abc", "token-file": "x", "secret-token": "", "note": "ghp_" + strings.Repeat("a1", 18)})
	want := map[string]string{"app": "reviews", "db-password": "[redacted]", "token-file": "x", "secret-token": "", "note": "[redacted]"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestBrokenJSONIsAnErrorAndNotAPanic(t *testing.T) {
	for _, text := range []string{"", "{", `{"a"`, `{"a":`, `{"key":`, "[1,", "[1}", "nope", strings.Repeat("[", 100000)} {
		var out bytes.Buffer
		if err := JSON(&out, strings.NewReader(text)); err == nil {
			t.Errorf("%.20s was accepted", text)
		}
	}
}

func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"password":"a","b":[1,{"c":null}]}`, `{"key":"authorization","value":{"a":["x"]}}`, `[["Bearer abcdefghijkl"]]`, `{"key":1,"value":2}`, `1e400`, `"\ud800"`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		err := JSON(&out, strings.NewReader(text))
		if err != nil {
			return
		}
		if !json.Valid(out.Bytes()) {
			t.Fatalf("%q became %q", text, out.String())
		}
		var again bytes.Buffer
		if err := JSON(&again, bytes.NewReader(out.Bytes())); err != nil || again.String() != out.String() {
			t.Fatalf("redacting the output changes it: %q, %q, %v", out.String(), again.String(), err)
		}
		if !json.Valid([]byte(text)) {
			return // a complete value followed by other text
		}
		if diff := cmp.Diff(shape(t, []byte(text)), shape(t, out.Bytes())); diff != "" {
			t.Fatalf("the structure changed: %s", diff)
		}
	})
}

// shape returns a JSON value in which all strings are replaced by the same one. Of fields with the same name it
// contains the last.
func shape(t *testing.T, text []byte) any {
	var v any
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return blank(v)
}

func blank(v any) any {
	switch v := v.(type) {
	case string:
		return ""
	case []any:
		for i := range v {
			v[i] = blank(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = blank(v[k])
		}
	}
	return v
}

// FuzzMayHold: mayContainSecret returns true for every text that secretTexts matches.
func FuzzMayHold(f *testing.F) {
	for _, text := range []string{
		"-----BEGIN RSA PRIVATE KEY-----\nabc", "a Bearer abcdefghijkl", "BASIC YWxhZGRpbjpv", "x eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.abc",
		"https://ann:secret@example.com/", "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t", "AKIAIOSFODNN7EXAMPLE ghp_0123456789abcdefghij", "xoxb-1234567890 hvs.0123456789abcdefghij",
		"/v?sig=abc", "a&X-Amz-Signature=abc", "/books?access_token=x", "eyJeyJbearer bearer abcdefghi",
		"\u017fig", "?\u017fig=x", "ba\u017fic YWxhZGRpbjpv", "?to\u212aen=abc",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if secretTexts().MatchString(text) && !mayContainSecret(text) {
			t.Errorf("mayContainSecret does not detect the secret in %q", text)
		}
	})
}

func BenchmarkLooks(b *testing.B) {
	const line = `[2026-11-21 18:10:34.573][7749][debug][http] [source/common/http/conn_manager_impl.cc:393] [Tags: "ConnectionId":"123","StreamId":"9876543210123"] request headers complete (end_stream=true):`
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		RedactPatterns(line)
	}
}
