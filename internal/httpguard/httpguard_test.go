package httpguard

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestRequestsOfForeignWebPagesAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, method, host string
		header             map[string]string
		refused            string // part of the error; empty: accepted
	}{
		{"an IPv4 address", "GET", "127.0.0.1:15020", nil, ""},
		{"an IPv6 address", "GET", "[::1]:15020", nil, ""},
		{"an IPv6 address without a port", "GET", "[::1]", nil, ""},
		{"localhost", "POST", "LocalHost:15020", nil, ""},
		{"localhost with a final dot", "GET", "localhost.", nil, ""},
		{"no host, as HTTP/1.0", "GET", "", nil, ""},
		{"a configured name", "GET", "Mesh.example:15014", nil, ""},
		{"another name", "GET", "evil.example:15020", nil, `"evil.example:15020" is not a name of this server`},
		{"a name that begins with an address", "GET", "127.0.0.1.evil.example", nil, "not a name"},
		{"a name below localhost's", "GET", "localhost.evil.example", nil, "not a name"},
		{"a host that would change a terminal", "GET", "\x1b[2J\u202e", nil, `\x1b[2J\u202e`},
		{"its own origin", "POST", "localhost:1", map[string]string{"Origin": "http://localhost:1"}, ""},
		{"its own origin, by the browser", "POST", "localhost:1", map[string]string{"Sec-Fetch-Site": "same-origin"}, ""},
		{"an address in a browser's bar", "GET", "localhost:1", map[string]string{"Sec-Fetch-Site": "none"}, ""},
		{"a foreign origin", "GET", "localhost:1", map[string]string{"Origin": "https://evil.example"}, "https://evil.example"},
		{"another port's origin", "POST", "localhost:1", map[string]string{"Origin": "http://localhost:2"}, "another origin"},
		{"an opaque origin", "POST", "localhost:1", map[string]string{"Origin": "null"}, "another origin"},
		{"an origin that contradicts the browser", "POST", "localhost:1",
			map[string]string{"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, "evil.example"},
		{"a link on a foreign page", "GET", "localhost:1", map[string]string{"Sec-Fetch-Site": "cross-site"}, "another origin"},
		{"a link on another port's page", "GET", "localhost:1", map[string]string{"Sec-Fetch-Site": "same-site"}, ""},
		{"a form on another port's page", "POST", "localhost:1", map[string]string{"Sec-Fetch-Site": "same-site"}, "another origin"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := answer(context.Background(), c.method, c.host, c.header)
			if c.refused == "" && w.Code != http.StatusOK {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
			if c.refused != "" && (w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), c.refused)) {
				t.Errorf("status %d: %s; want 403 and %q", w.Code, w.Body, c.refused)
			}
		})
	}
}

func TestAnyHostIsAcceptedOnAUnixSocket(t *testing.T) {
	ctx := context.WithValue(context.Background(), http.LocalAddrContextKey, &net.UnixAddr{Name: "control", Net: "unix"})
	if w := answer(ctx, "GET", "agent", nil); w.Code != http.StatusOK {
		t.Errorf("status %d: %s", w.Code, w.Body)
	}
}

func TestALongHostIsNotRepeatedWhole(t *testing.T) {
	w := answer(context.Background(), "GET", strings.Repeat("a", 60000), nil)
	if w.Body.Len() > 300 {
		t.Errorf("the answer has %d bytes", w.Body.Len())
	}
}

func answer(ctx context.Context, method, host string, header map[string]string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, method, "/debug", nil)
	r.Host = host
	for name, value := range header {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), "mesh.example.").ServeHTTP(w, r)
	return w
}
