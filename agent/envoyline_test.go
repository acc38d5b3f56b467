package agent

import "testing"

func TestEnvoysOwnLinesGoWithoutSecrets(t *testing.T) {
	const key = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
	for line, want := range map[string]string{
		"[2026-11-21 18:10:34.573][7749][warning][main] [x.cc:1] a token " + key + " here": "[2026-11-21 18:10:34.573][7749][warning][main] [x.cc:1] a token [redacted] here",
		"[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] all is well":                 "[2026-11-21 18:10:34.573][7749][info][main] [x.cc:1] all is well",
		"'authorization', 'Basic abc'":                                                     "'authorization', '[redacted]'",
		"'x-api-key', 'short'":                                                             "'x-api-key', '[redacted]'",
		"'cookie', 'a=b; it's'":                                                            "'cookie', '[redacted]'",
		"':path', '/books?page=2'":                                                         "':path', '/books?page=2'",
		"':path', '/books?access_token=abcdefghi'":                                         "':path', '/books[redacted]'",
		"[2026-11-21T18:10:34.573Z] \"GET /?t=" + key + "\" 200":                           "[2026-11-21T18:10:34.573Z] \"GET /?t=" + key + "\" 200", // an access log
		`{"bytes_sent":1,"path":"/","jwt":"` + key + `"}`:                                  `{"bytes_sent":1,"path":"/","jwt":"` + key + `"}`,
		`{"level":"error","scope":"config","msg":"jwt ` + key + `"}`:                       `{"level":"error","scope":"config","msg":"jwt [redacted]"}`,
		"": "", "'": "'", "[": "[",
	} {
		if got := envoySays(line); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", line, got, want)
		}
	}
}
