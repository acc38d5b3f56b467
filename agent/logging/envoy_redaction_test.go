package logging

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEnvoyLogLinesAreRedacted(t *testing.T) {
	const key = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
	for line, want := range map[string]string{
		"[2026-11-21 18:10:34.573][7749][warning][main] [x.cc:1] a token " + key + " here":                       "[2026-11-21 18:10:34.573][7749][warning][main] [x.cc:1] a token [redacted] here",
		"[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] all is well":                                       "[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] all is well",
		"2026-11-21T18:10:34.573123Z\twarning\tenvoy main x.cc:1\ta token " + key + "\tthread=7":                 "2026-11-21T18:10:34.573123Z\twarning\tenvoy main x.cc:1\ta token [redacted]\tthread=7",
		"GET /?token=abcdefgh 202026-11-21T18:10:34.573123Z\tinfo\tenvoy main x.cc:1\tjwt " + key + "\tthread=7": "GET /?token=abcdefgh 202026-11-21T18:10:34.573123Z\tinfo\tenvoy main x.cc:1\tjwt [redacted]\tthread=7",
		"2026-11-21T18:10:34.573Z\tGET /?t=" + key + "\tenvoy x":                                                 "2026-11-21T18:10:34.573Z\tGET /?t=" + key + "\tenvoy x", // an access log
		"'authorization', 'Basic abc'":                           "'authorization', '[redacted]'",
		"'authorization', 'Basic abc'\tthread=7":                 "'authorization', '[redacted]'",
		"'x-api-key', 'short'":                                   "'x-api-key', '[redacted]'",
		"'cookie', 'a=b; it's'":                                  "'cookie', '[redacted]'",
		"':path', '/books?page=2'":                               "':path', '/books?page=2'",
		"':path', '/books?access_token=abcdefghi'":               "':path', '/books[redacted]'",
		"[2026-11-21T18:10:34.573Z] \"GET /?t=" + key + "\" 200": "[2026-11-21T18:10:34.573Z] \"GET /?t=" + key + "\" 200", // an access log
		`{"bytes_sent":1,"path":"/","jwt":"` + key + `"}`:        `{"bytes_sent":1,"path":"/","jwt":"` + key + `"}`,
		`{"path":"/","sent":"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\n"}`: `{"path":"/","sent":"[redacted]\n"}`,
		`{"level":"error","scope":"config","msg":"jwt ` + key + `"}`:                           `{"level":"error","scope":"config","msg":"jwt [redacted]"}`,
		// an Envoy message after an unfinished access log line
		"GET /?token=abcdefgh 20[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] jwt " + key:                    "GET /?token=abcdefgh 20[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] jwt [redacted]",
		`{"path":"/","a":{"level":"b"}}{"level":"error","time":"2026-11-21T18:10:34.573Z","msg":"jwt ` + key + `"}`: `{"path":"/","a":{"level":"b"}}{"level":"error","time":"2026-11-21T18:10:34.573Z","msg":"jwt [redacted]"}`,
		`{"path":"/","a":{"level":"b","jwt":"` + key + `"}}`:                                                        `{"path":"/","a":{"level":"b","jwt":"` + key + `"}}`,
		"": "", "'": "'", "[": "[",
	} {
		var w EnvoyRedactor
		if got, ok := w.RedactLine(line); got != want || !ok {
			t.Errorf("%s\nbecame %s\nwant   %s", line, got, want)
		}
	}
}

func TestMultilineSecretsInEnvoyLogAreRedacted(t *testing.T) {
	for _, begins := range []string{"[2026-11-21 18:10:34.573][7749][debug][config] [x.cc:1] ", "2026-11-21T18:10:34.573123Z\tdebug\tenvoy config x.cc:1\t"} {
		t.Run(begins[:1], func(t *testing.T) { testMultilineSecrets(t, begins) })
	}
}

func testMultilineSecrets(t *testing.T, begins string) {
	var w EnvoyRedactor
	var got []string
	for line := range strings.SplitSeq(begins+`received: resources {
  name: "a"
  private_key {
    inline_bytes: "c2VjcmV0"
  }
}
GET /?token=abcdefgh 200
`+begins+`rejected: inline: |
  -----BEGIN PRIVATE KEY-----
  MIIEvQIBADANBg
  k0+/aa==
  -----END PRIVATE KEY-----
[2026-11-21T18:10:34.573Z] "GET /?token=abcdefgh" 200
  password: "of an access log"
-----BEGIN PRIVATE KEY-----
MIIE
`+begins+`all is well
AAEE
-----END PRIVATE KEY-----`, "\n") {
		if text, ok := w.RedactLine(line); ok {
			got = append(got, text)
		}
	}
	want := []string{
		begins + "received: resources {", `  name: "a"`, "  private_key {", "    inline_bytes: [redacted]", "  }", "}", "GET /?token=abcdefgh 200",
		begins + "rejected: inline: |", "  [redacted]", `[2026-11-21T18:10:34.573Z] "GET /?token=abcdefgh" 200`, `  password: "of an access log"`,
		"[redacted]", begins + "all is well",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
