package sts

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
	"github.com/pilotfish-mesh/pilotfish/internal/tlspolicy"
)

const goodAnswer = `{"access_token":"at","issued_token_type":"urn:ietf:params:oauth:token-type:access_token","token_type":"Bearer","expires_in":60,"scope":"a"}`

// serve runs an HTTP server with handler f until the test ends, and returns its URL.
func serve(t *testing.T, f http.HandlerFunc) string {
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.URL + "/token"
}

func newTestEndpoint(t *testing.T, config EndpointConfig) *Endpoint {
	t.Helper()
	config.Now = newClock().Now
	e, err := NewEndpoint(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

func TestEndpointReceivesAllParameters(t *testing.T) {
	var got url.Values
	var user, password string
	e := newTestEndpoint(t, EndpointConfig{
		ClientID: "me:and you", ClientSecret: fixed("s%cret"),
		URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
			_ = r.ParseForm()
			got = r.PostForm
			user, password, _ = r.BasicAuth()
			_, _ = io.WriteString(w, goodAnswer)
		}),
	})
	token, err := e.Exchange(t.Context(), Request{
		Subject: "s", SubjectType: JWTType, Actor: "a", ActorType: JWTType, Scope: "x y", RequestedType: JWTType,
		Resources: []string{"https://r1/", "https://r2/"}, Audiences: []string{"a1", "a2"},
	})
	want := Token{Access: "at", IssuedType: AccessTokenType, Type: "Bearer", Scope: "a", Expires: noon.Add(time.Minute)}
	if err != nil || token != want {
		t.Fatalf("got %+v, %v", token, err)
	}
	form := url.Values{
		"grant_type": {GrantType}, "subject_token": {"s"}, "subject_token_type": {JWTType}, "actor_token": {"a"}, "actor_token_type": {JWTType},
		"scope": {"x y"}, "requested_token_type": {JWTType}, "resource": {"https://r1/", "https://r2/"}, "audience": {"a1", "a2"},
	}
	if diff := cmp.Diff(form, got); diff != "" {
		t.Error(diff)
	}
	if user != "me%3Aand+you" || password != "s%25cret" {
		t.Errorf("the client is %s:%s", user, password)
	}
}

func TestOnlyServerErrorsAreRetried(t *testing.T) {
	for status, attempts := range map[int]int32{
		500: maxAttempts, 502: maxAttempts, 503: maxAttempts,
		301: 1, 307: 1, 400: 1, 401: 1, 403: 1, 404: 1, 408: 1, 429: 1, 204: 1,
	} {
		var n atomic.Int32
		e := newTestEndpoint(t, EndpointConfig{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
		})})
		_, err := e.Exchange(t.Context(), Request{})
		if err == nil || n.Load() != attempts || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("status %d: %d attempts, want %d: %v", status, n.Load(), attempts, err)
		}
	}
}

func TestRecoveredServerIsUsed(t *testing.T) {
	var n atomic.Int32
	e := newTestEndpoint(t, EndpointConfig{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch n.Add(1) {
		case 1:
			w.WriteHeader(http.StatusBadGateway)
		case 2:
			panic(http.ErrAbortHandler) // closes the connection without a response
		default:
			_, _ = io.WriteString(w, goodAnswer)
		}
	})})
	if token, err := e.Exchange(t.Context(), Request{}); err != nil || token.Access != "at" || n.Load() != 3 {
		t.Errorf("got %v after %d attempts", err, n.Load())
	}
}

// Each row is a response without a usable token.
func TestInvalidAnswersAreErrors(t *testing.T) {
	for name, body := range map[string]string{
		"nothing": "", "text": "hello", "a list": "[]", "half": goodAnswer[:40], "a tail": goodAnswer + "x",
		"no token":                 `{"token_type":"Bearer"}`,
		"no type":                  `{"access_token":"at"}`,
		"a token that is a number": `{"access_token":1,"token_type":"Bearer"}`,
		"a token with a line end":  `{"access_token":"at\r\nX: y","token_type":"Bearer"}`,
		"two tokens":               `{"access_token":"a","access_token":"b","token_type":"Bearer"}`,
		"a life below zero":        `{"access_token":"a","token_type":"Bearer","expires_in":-1}`,
		"a life that is a word":    `{"access_token":"a","token_type":"Bearer","expires_in":"long"}`,
		"too much":                 `{"access_token":"` + strings.Repeat("a", maxAnswer) + `","token_type":"Bearer"}`,
	} {
		var n atomic.Int32
		e := newTestEndpoint(t, EndpointConfig{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
			n.Add(1)
			_, _ = io.WriteString(w, body)
		})})
		if token, err := e.Exchange(t.Context(), Request{}); err == nil || token.Access != "" || n.Load() != 1 {
			t.Errorf("%s: got %v after %d attempts", name, err, n.Load())
		}
	}
}

func TestLenientAnswersAreAccepted(t *testing.T) {
	for body, want := range map[string]Token{
		`{"access_token":"a","token_type":"Bearer","expires_in":"60"}`:           {Expires: noon.Add(time.Minute)},
		`{"access_token":"a","token_type":"Bearer","expires_in":60.5,"more":{}}`: {Expires: noon.Add(time.Minute)},
		`{"access_token":"a","token_type":"Bearer"}`:                             {},
		`{"access_token":"a","token_type":"Bearer","expires_in":null}`:           {},
		`{"access_token":"a","token_type":"Bearer","expires_in":1e30}`:           {Expires: noon.Add(maxLifetime)},
	} {
		want.Access, want.Type, want.IssuedType = "a", "Bearer", AccessTokenType
		if got, err := parseToken([]byte(body), noon); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", body, got, err)
		}
	}
}

// Errors that the client can fix are forwarded to it. Errors of the agent's own credentials are not.
func TestRefusalsOfTheEndpoint(t *testing.T) {
	for code, passed := range map[string]bool{
		CodeInvalidRequest: true, CodeInvalidGrant: true, CodeInvalidScope: true, CodeInvalidTarget: true,
		CodeInvalidClient: false, CodeUnauthorizedClient: false, CodeUnsupportedGrantType: false, "something": false,
	} {
		e := newTestEndpoint(t, EndpointConfig{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]string{"error": code, "error_description": "because of " + workloadToken(t)})
		})})
		_, err := e.Exchange(t.Context(), Request{})
		var refusal *Error
		if errors.As(err, &refusal) != passed || !strings.Contains(err.Error(), "because of "+removed) {
			t.Errorf("%s: got %v", code, err)
		}
		if passed && (refusal.Code != code || refusal.Status != http.StatusBadRequest) {
			t.Errorf("%s became %+v", code, refusal)
		}
	}
}

func TestHungServerIsCancelledWithTheContext(t *testing.T) {
	asked := make(chan struct{}, maxAttempts)
	e := newTestEndpoint(t, EndpointConfig{URL: serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done()
	})})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := e.Exchange(ctx, Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestEndpointIsVerifiedByRoots(t *testing.T) {
	authority := testpki.New(t, "exchange")
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, goodAnswer) }))
	server.TLS = authority.ServerConfig(t, "127.0.0.1")
	server.TLS.NextProtos = nil
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	write := func(a *testpki.Authority) {
		if err := os.WriteFile(roots, a.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	e := newTestEndpoint(t, EndpointConfig{URL: server.URL, RootFile: roots})
	write(testpki.New(t, "another"))
	if _, err := e.Exchange(t.Context(), Request{}); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("with another root: %v", err)
	}
	write(authority)
	if _, err := e.Exchange(t.Context(), Request{}); err != nil {
		t.Errorf("with its root: %v", err)
	}
}

func TestEndpointUsesTLSPolicy(t *testing.T) {
	authority := testpki.New(t, "exchange")
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	for policy, only := range map[tlspolicy.Policy]*tls.Config{
		tlspolicy.FIPS1402:    {MinVersion: tls.VersionTLS13},
		tlspolicy.FIPS1403:    {MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}},
		tlspolicy.PostQuantum: {MaxVersion: tls.VersionTLS12},
	} {
		var requests atomic.Int32
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			_, _ = io.WriteString(w, goodAnswer)
		}))
		server.TLS = only
		server.TLS.Certificates = authority.ServerConfig(t, "127.0.0.1").Certificates
		server.StartTLS()
		t.Cleanup(server.Close)
		narrowed := newTestEndpoint(t, EndpointConfig{URL: server.URL, RootFile: roots, Policy: policy})
		if _, err := narrowed.Exchange(t.Context(), Request{}); err == nil || requests.Load() != 0 {
			t.Errorf("%s: a server without an allowed TLS version or cipher suite received %d requests: %v", policy, requests.Load(), err)
		}
		open := newTestEndpoint(t, EndpointConfig{URL: server.URL, RootFile: roots})
		if _, err := open.Exchange(t.Context(), Request{}); err != nil {
			t.Errorf("without a policy: %v", err)
		}
	}
}

func TestTokensAreSentToSafeAddressesOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://exchange.example/token": true, "http://127.0.0.1:80/token": true, "http://localhost/": true, "http://[::1]/": true,
		"http://exchange.example/token": false, "http://10.0.0.1/": false, "ftp://127.0.0.1/": false, "exchange.example": false,
		"https://u:p@exchange.example/": false, "https://exchange.example/#a": false, "": false, "http://127.0.0.1.example/": false, "https:///x": false,
	} {
		_, err := NewEndpoint(EndpointConfig{URL: address})
		if (err == nil) != ok || (err != nil && strings.Contains(err.Error(), "u:p")) {
			t.Errorf("%q: %v", address, err)
		}
	}
}

// google is a fake of Google's token exchange that accepts one workload and records the calls.
func google(t *testing.T, audience, account string, fail func(path string) (int, string)) (base string, calls *[]string) {
	calls = &[]string{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/token", func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		*calls = append(*calls, "token "+r.PostForm.Get("scope"))
		want := url.Values{"grant_type": {GrantType}, "audience": {audience}, "scope": r.PostForm["scope"], "requested_token_type": {AccessTokenType},
			"subject_token": {"subject"}, "subject_token_type": {JWTType}}
		if diff := cmp.Diff(want, r.PostForm); diff != "" {
			t.Error(diff)
		}
		_, _ = io.WriteString(w, strings.Replace(goodAnswer, `"at"`, `"federated"`, 1))
	})
	mux.HandleFunc("POST /v1/projects/-/serviceAccounts/"+account+":generateAccessToken", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*calls = append(*calls, "impersonate "+string(body))
		if r.Header.Get("Authorization") != "Bearer federated" {
			t.Errorf("impersonation with %q", r.Header.Get("Authorization"))
		}
		_, _ = fmt.Fprintf(w, `{"accessToken":"at","expireTime":%q}`, noon.Add(time.Hour).Format(time.RFC3339Nano))
	})
	return strings.TrimSuffix(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if status, body := fail(r.URL.Path); status != 0 {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
		mux.ServeHTTP(w, r)
	}), "/token"), calls
}

func rejectAll(string) (int, string) { return 0, "" }

const (
	pool    = "identitynamespace:p.svc.id.goog:https://container.example/c"
	account = "service-1@gcp-sa-meshdataplane.iam.gserviceaccount.com"
)

func newTestGoogle(t *testing.T, base, account string) *Google {
	t.Helper()
	g, err := NewGoogle(GoogleConfig{Audience: pool, ServiceAccount: account, TokenURL: base + "/v1/token", ImpersonationURL: base, Now: newClock().Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

func TestGoogleServiceAccountToken(t *testing.T) {
	base, calls := google(t, pool, account, rejectAll)
	g := newTestGoogle(t, base, account)
	token, err := g.Exchange(t.Context(), Request{Subject: "subject", SubjectType: JWTType, Scope: "a b", Audiences: []string{pool}})
	want := Token{Access: "at", Type: "Bearer", IssuedType: AccessTokenType, Expires: noon.Add(time.Hour)}
	if err != nil || token != want {
		t.Fatalf("got %+v, %v", token, err)
	}
	if diff := cmp.Diff([]string{"token " + googleScope, `impersonate {"lifetime":"3600s","scope":["a","b"]}`}, *calls); diff != "" {
		t.Error(diff)
	}
}

func TestGoogleFederatedToken(t *testing.T) {
	base, calls := google(t, pool, account, rejectAll)
	token, err := newTestGoogle(t, base, "").Exchange(t.Context(), Request{Subject: "subject", SubjectType: JWTType, Scope: "a"})
	if err != nil || token.Access != "federated" || !token.Expires.Equal(noon.Add(time.Minute)) || len(*calls) != 1 || (*calls)[0] != "token a" {
		t.Errorf("got %+v, %v, %v", token, err, *calls)
	}
}

func TestUnsupportedGoogleRequestsAreRefused(t *testing.T) {
	base, calls := google(t, pool, account, rejectAll)
	g := newTestGoogle(t, base, account)
	for code, r := range map[string]Request{
		CodeInvalidRequest:       {RequestedType: JWTType},
		CodeInvalidTarget:        {Audiences: []string{"another"}},
		CodeInvalidTarget + " ":  {Resources: []string{"https://a/"}},
		CodeInvalidRequest + " ": {Actor: "a"},
	} {
		_, err := g.Exchange(t.Context(), r)
		var refusal *Error
		if !errors.As(err, &refusal) || refusal.Code != strings.TrimSpace(code) {
			t.Errorf("%+v: got %v", r, err)
		}
	}
	if len(*calls) != 0 {
		t.Errorf("Google received requests: %v", *calls)
	}
}

func TestGoogleErrors(t *testing.T) {
	denied := `{"error":{"code":403,"message":"Permission iam.serviceAccounts.getAccessToken denied","status":"PERMISSION_DENIED"}}`
	for want, row := range map[string]struct {
		path, body string
		status     int
	}{
		"PERMISSION_DENIED":   {"serviceAccounts", denied, 403},
		"no accessToken":      {"serviceAccounts", `{"accessToken":"at"}`, 200},
		"after 5 attempts":    {"serviceAccounts", "", 503},
		"NOT_FOUND: Gaia id":  {"serviceAccounts", `{"error":{"code":404,"message":"Gaia id not found for email a@b","status":"NOT_FOUND","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo"}]}}`, 404},
		"status 429 ":         {"serviceAccounts", `<html>`, 429},
		"API has not been":    {"token", `{"error":{"code":403,"message":"Security Token Service API has not been used in project 1","status":"PERMISSION_DENIED"}}`, 403},
		"status 404":          {"token", `<!DOCTYPE html>`, 404},
		"invalid_grant: http": {"token", `{"error":"invalid_grant","error_description":"no such pool"}`, 400},
		"federated token":     {"token", "", 500},
	} {
		base, _ := google(t, pool, account, func(path string) (int, string) {
			if strings.Contains(path, row.path) {
				return row.status, row.body
			}
			return 0, ""
		})
		_, err := newTestGoogle(t, base, account).Exchange(t.Context(), Request{Subject: "subject", SubjectType: JWTType})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestFileFetcher(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "token")
	fetch := func() (Secret, error) { return FileFetcher{Path: file}.Fetch(t.Context()) }
	if _, err := fetch(); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("no file: %v", err)
	}
	for content, ok := range map[string]bool{"abc\n": true, "abc": true, "": false, "\n": false, "a b": false, strings.Repeat("a", maxToken+1): false} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := fetch(); (err == nil) != ok || (ok && got != "abc") {
			t.Errorf("%.10q: %v", content, err)
		}
	}
	if _, err := (FileFetcher{Path: dir}).Fetch(t.Context()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

func TestMetadataTokenIsCached(t *testing.T) {
	clock := newClock()
	var n, away atomic.Int32
	base := serve(t, func(w http.ResponseWriter, r *http.Request) {
		want := map[string][]string{"audience": {"a b"}, "format": {"full"}}
		if r.Header.Get("Metadata-Flavor") != "Google" || !maps.EqualFunc(r.URL.Query(), want, func(a, b []string) bool { return cmp.Equal(a, b) }) ||
			!strings.HasSuffix(r.URL.Path, "/instance/service-accounts/default/identity") {
			t.Errorf("request %s with headers %v", r.URL, r.Header)
		}
		if away.Load() != 0 {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, jwt(t, map[string]any{"n": n.Add(1), "exp": clock.Now().Add(time.Hour).Unix()}))
	})
	f, err := NewMetadataFetcher(MetadataConfig{Audience: "a b", URL: base, Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	steps := []struct {
		pass time.Duration
		away int32
		n    int32
		ok   bool
	}{
		{0, 0, 1, true}, {34 * time.Minute, 0, 1, true}, {2 * time.Minute, 1, 1, true}, {time.Second, 0, 1, true},
		{metadataPause, 0, 2, true}, {59 * time.Minute, 1, 2, true}, {2 * time.Minute, 1, 2, false}, {time.Second, 0, 3, true},
	}
	for i, step := range steps {
		clock.pass(step.pass)
		away.Store(step.away)
		token, err := f.Fetch(t.Context())
		if (err == nil) != step.ok || (err == nil) != (token != "") || n.Load() != step.n {
			t.Errorf("step %d: token %d, %v", i, n.Load(), err)
		}
	}
}
