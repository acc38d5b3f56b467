package sts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestATokenIsExchanged(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	_, base, _ := start(t, Config{Exchanger: from, Check: workloadCheck, Now: clock.Now})
	got := post(t, base, formType, form(t, "scope", "read write", "requested_token_type", AccessTokenType)+
		"&audience=a&audience=b&resource=https%3A%2F%2Fr.example%2F")
	want := answer{AccessToken: "access-1", IssuedTokenType: AccessTokenType, TokenType: "Bearer", ExpiresIn: 3600}
	if got.Status != http.StatusOK || got.answer != want {
		t.Fatalf("got %d %+v, want %+v", got.Status, got.answer, want)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store", "Pragma": "no-cache"} {
		if got.Header.Get(name) != value {
			t.Errorf("header %s is %q, want %q", name, got.Header.Get(name), value)
		}
	}
	asked := from.requests[0]
	if string(asked.Subject) != workloadToken(t) || asked.Scope != "read write" || asked.RequestedType != AccessTokenType ||
		cmp.Diff(asked.Audiences, []string{"a", "b"})+cmp.Diff(asked.Resources, []string{"https://r.example/"}) != "" {
		t.Error("the exchanger did not receive all parameters")
	}
}

// Each row is an invalid request, which must not reach the exchange server.
func TestInvalidRequestsAreNotSent(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	_, base, _ := start(t, Config{Exchanger: from, Check: workloadCheck, Now: clock.Now})
	subject := func(changes map[string]any) string {
		claims := map[string]any{"iss": "https://issuer.example", "aud": "mesh", "exp": noon.Add(time.Hour).Unix()}
		for name, value := range changes {
			if claims[name] = value; value == nil {
				delete(claims, name)
			}
		}
		return form(t, "subject_token", jwt(t, claims))
	}
	good := map[string]string{"grant_type": GrantType, "subject_token": workloadToken(t), "subject_token_type": JWTType}
	object := func(more string) string {
		b, _ := json.Marshal(good)
		return strings.TrimSuffix(string(b), "}") + more + "}"
	}
	for _, row := range []struct {
		name, contentType, body string
		status                  int
		code                    string
	}{
		{"nothing", formType, "", 400, CodeInvalidRequest},
		{"no content type", "", form(t), 415, CodeInvalidRequest},
		{"another content type", "text/plain", form(t), 415, CodeInvalidRequest},
		{"another charset", formType + "; charset=utf-16", form(t), 415, CodeInvalidRequest},
		{"a broken form", formType, form(t) + "&a=%zz", 400, CodeInvalidRequest},
		{"semicolons", formType, form(t) + ";a=b", 400, CodeInvalidRequest},
		{"not UTF-8", formType, form(t) + "&scope=%ff", 400, CodeInvalidRequest},
		{"too long", formType, form(t, "filler", strings.Repeat("x", maxBody)), 413, CodeInvalidRequest},
		{"no grant type", formType, form(t, "grant_type", "-"), 400, CodeInvalidRequest},
		{"an empty grant type", formType, form(t, "grant_type", ""), 400, CodeInvalidRequest},
		{"another grant type", formType, form(t, "grant_type", "client_credentials"), 400, CodeUnsupportedGrantType},
		{"no subject token", formType, form(t, "subject_token", "-"), 400, CodeInvalidRequest},
		{"no subject token type", formType, form(t, "subject_token_type", "-"), 400, CodeInvalidRequest},
		{"another subject token type", formType, form(t, "subject_token_type", AccessTokenType), 400, CodeInvalidRequest},
		{"an actor without a type", formType, form(t, "actor_token", "x"), 400, CodeInvalidRequest},
		{"a type without an actor", formType, form(t, "actor_token_type", JWTType), 400, CodeInvalidRequest},
		{"an actor that has expired", formType, form(t, "actor_token_type", JWTType, "actor_token", jwt(t, map[string]any{"exp": 7})), 400, CodeInvalidRequest},
		{"a parameter twice", formType, form(t) + "&scope=a&scope=b", 400, CodeInvalidRequest},
		{"an unknown parameter twice", formType, form(t) + "&x=a&x=b", 400, CodeInvalidRequest},
		{"a scope with a quote", formType, form(t, "scope", `a"b`), 400, CodeInvalidScope},
		{"a scope with two spaces", formType, form(t, "scope", "a  b"), 400, CodeInvalidScope},
		{"a relative resource", formType, form(t, "resource", "/a"), 400, CodeInvalidTarget},
		{"a resource with a fragment", formType, form(t, "resource", "https://a/#b"), 400, CodeInvalidTarget},
		{"a subject that is no JWT", formType, form(t, "subject_token", "opaque"), 400, CodeInvalidRequest},
		{"a subject that is not signed", formType, form(t, "subject_token", rawJWT(t, map[string]any{"alg": "none"}, map[string]any{"exp": 1e11})), 400, CodeInvalidRequest},
		{"an issuer of somewhere else", formType, subject(map[string]any{"iss": "https://evil.example"}), 400, CodeInvalidRequest},
		{"an issuer in other letters", formType, subject(map[string]any{"iss": nil, "ISS": "https://issuer.example"}), 400, CodeInvalidRequest},
		{"a token for somebody else", formType, subject(map[string]any{"aud": []string{"kubernetes"}}), 400, CodeInvalidRequest},
		{"a token for nobody", formType, subject(map[string]any{"aud": nil}), 400, CodeInvalidRequest},
		{"a token without an end", formType, subject(map[string]any{"exp": nil}), 400, CodeInvalidRequest},
		{"a token with an end that is none", formType, subject(map[string]any{"exp": "tomorrow"}), 400, CodeInvalidRequest},
		{"a token with an end beyond all time", formType, subject(map[string]any{"exp": 1e300}), 400, CodeInvalidRequest},
		{"an expired token", formType, subject(map[string]any{"exp": noon.Add(-31 * time.Second).Unix()}), 400, CodeInvalidRequest},
		{"a token of tomorrow", formType, subject(map[string]any{"nbf": noon.Add(time.Hour).Unix()}), 400, CodeInvalidRequest},
		{"an object that is none", jsonType, "[]", 400, CodeInvalidRequest},
		{"an object with a number", jsonType, object(`,"scope":1`), 400, CodeInvalidRequest},
		{"an object with a name twice", jsonType, object(`,"scope":"a","scope":"a"`), 400, CodeInvalidRequest},
		{"an object with a tail", jsonType, object("") + "{}", 400, CodeInvalidRequest},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := post(t, base, row.contentType, row.body)
			if got.Status != row.status || got.Error != row.code || got.Description == "" {
				t.Errorf("got %d %s, want %d %s", got.Status, got.raw, row.status, row.code)
			}
			if strings.Contains(got.raw, "eyJ") || got.Header.Get("Cache-Control") != "no-store" {
				t.Errorf("the response contains a token or may be cached: %v %s", got.Header, got.raw)
			}
		})
	}
	if n := from.count(); n != 0 {
		t.Errorf("%d invalid requests reached the exchange server", n)
	}
}

func TestRequestsAllowedByRFCsAreAccepted(t *testing.T) {
	clock := newClock()
	_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Check: workloadCheck, Now: clock.Now})
	soon := jwt(t, map[string]any{"iss": "https://issuer.example", "aud": "mesh", "exp": noon.Add(-20 * time.Second).Unix(), "nbf": noon.Add(20 * time.Second).Unix()})
	for name, body := range map[string]string{
		"parameters that nobody knows":            form(t) + "&client_id=me&x=1",
		"empty parameters, as not given":          form(t) + "&scope=&resource=&actor_token=",
		"a file's last newline":                   form(t, "subject_token", workloadToken(t)+"\n"),
		"clocks that are a little apart":          form(t, "subject_token", soon),
		"an actor of a type that is opaque":       form(t, "actor_token", "x", "actor_token_type", AccessTokenType),
		"C++'s form, whose names are not escaped": "grant_type=" + GrantType + "&subject_token=" + workloadToken(t) + "&subject_token_type=" + JWTType,
	} {
		if got := post(t, base, formType+"; charset=UTF-8", body); got.Status != http.StatusOK {
			t.Errorf("%s: got %d %s", name, got.Status, got.raw)
		}
	}
}

func TestPathsAndMethods(t *testing.T) {
	clock := newClock()
	_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Now: clock.Now})
	for _, row := range []struct {
		method, path string
		status       int
	}{
		{"GET", TokenPath, 405}, {"PUT", TokenPath, 405}, {"POST", statusPath, 405}, {"GET", statusPath, 200},
		{"GET", "/", 404}, {"POST", "/token/x", 404}, {"POST", TokenPath + "?scope=a", 400},
	} {
		if got := send(t, row.method, base+row.path, formType, form(t)); got.Status != row.status {
			t.Errorf("%s %s: got %d, want %d", row.method, row.path, got.Status, row.status)
		}
	}
}

func TestRequestsOfWebPagesAreRefused(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	_, base, _ := start(t, Config{Exchanger: from, Check: workloadCheck, Now: clock.Now})
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	for name, c := range map[string]struct {
		host, origin string
		status       int
	}{
		"DNS rebinding":        {"evil.example:" + port, "http://evil.example:" + port, 403},
		"a form of a web page": {"127.0.0.1:" + port, "https://evil.example", 403},
		"a client by address":  {"127.0.0.1:" + port, "", 200},
		"a client by name":     {"localhost:" + port, "", 200},
		"no port in the name":  {"localhost", "", 200},
	} {
		for method, path := range map[string]string{"POST": TokenPath, "GET": statusPath} {
			request, err := http.NewRequest(method, base+path, strings.NewReader(form(t)))
			if err != nil {
				t.Fatal(err)
			}
			request.Host = c.host
			request.Header.Set("Content-Type", formType)
			if c.origin != "" {
				request.Header.Set("Origin", c.origin)
			}
			response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != c.status {
				t.Errorf("%s, %s: got %d, want %d", name, path, response.StatusCode, c.status)
			}
		}
	}
	if from.count() != 1 {
		t.Errorf("%d exchanges", from.count())
	}
}

func TestStatusShowsNoTokens(t *testing.T) {
	clock := newClock()
	_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Now: clock.Now})
	if got := send(t, "GET", base+statusPath, "", ""); strings.TrimSpace(got.raw) != `{"tokens":[]}` {
		t.Errorf("with no token: %s", got.raw)
	}
	post(t, base, formType, form(t))
	var status struct {
		Tokens []map[string]string `json:"tokens"`
	}
	got := send(t, "GET", base+statusPath, "", "")
	if err := json.Unmarshal([]byte(got.raw), &status); err != nil {
		t.Fatal(err)
	}
	want := []map[string]string{{"token_type": AccessTokenType, "issue_time": "2026-01-02T12:00:00Z", "expire_time": "2026-01-02T13:00:00Z", "token": ""}}
	if diff := cmp.Diff(want, status.Tokens); diff != "" {
		t.Error(diff)
	}
}

func TestLoopbackOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"127.0.0.1:0": true, "127.110.0.1:0": true, "localhost:0": true, "[::1]:0": true,
		"0.0.0.0:0": false, ":0": false, "[::]:0": false, "10.0.0.1:0": false, "example.com:0": false, "127.0.0.1": false,
	} {
		if err := checkLoopback(address); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest("GET", statusPath, nil)
	request.RemoteAddr = "10.0.0.7:1234"
	(&Server{}).handler().ServeHTTP(recorder, request)
	if recorder.Code != http.StatusForbidden {
		t.Errorf("a client outside loopback got status %d", recorder.Code)
	}
}

func TestABusyPortIsExplained(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	if _, err := New(Config{Address: taken.Addr().String(), Exchanger: returning(newClock(), 1)}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
}

// TestErrorStatusAndCode: errors of the client's request have status 400. Failures of the exchange server have status
// 500 and the code invalid_target, as with Istio's agent.
func TestErrorStatusAndCode(t *testing.T) {
	for name, row := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"the client's":          {refuse(CodeInvalidScope, "no such scope"), 400, CodeInvalidScope},
		"the exchange server's": {errors.New(`connection "refused"`), 500, CodeInvalidTarget},
	} {
		_, base, _ := start(t, Config{Exchanger: &exchanger{do: func(context.Context, int, Request) (Token, error) { return Token{}, row.err }}})
		if got := post(t, base, formType, form(t)); got.Status != row.status || got.Error != row.code || strings.Contains(got.Description, `"`) {
			t.Errorf("%s: got %d %s", name, got.Status, got.raw)
		}
	}
}

func TestMetricsAndConditionReportFailures(t *testing.T) {
	clock := newClock()
	failing := true
	from := returning(clock, time.Hour)
	gives := from.do
	from.do = func(ctx context.Context, n int, r Request) (Token, error) {
		if failing {
			return Token{}, errors.New("it is away, and " + workloadToken(t) + " was of no use")
		}
		return gives(ctx, n, r)
	}
	registry := prometheus.NewRegistry()
	s, base, logged := start(t, Config{Exchanger: from, Now: clock.Now, Metrics: registry})
	got := post(t, base, formType, form(t))
	c := s.Condition()
	if !c.OK || !strings.Contains(c.Reason, "it is away") || c.Remedy == "" || !c.Since.Equal(noon) {
		t.Errorf("the condition is %+v", c)
	}
	for what, text := range map[string]string{"the condition": c.Reason, "the answer": got.raw, "the log": logged.String()} {
		if strings.Contains(text, "eyJ") || !strings.Contains(text, removed) {
			t.Errorf("%s: %s", what, text)
		}
	}
	failing = false
	clock.pass(failurePause)
	post(t, base, formType, form(t))
	if ok, reason := s.Health(); !ok || reason != "" {
		t.Errorf("after it: %v %q", ok, reason)
	}
	values := map[string]float64{}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	delete(values, "pilotfish_sts_exchange_seconds_total")
	want := map[string]float64{
		"pilotfish_sts_requests_total invalid_target": 1, "pilotfish_sts_requests_total granted": 1,
		"pilotfish_sts_exchanges_total failed": 1, "pilotfish_sts_exchanges_total done": 1, "pilotfish_sts_cached_tokens": 1,
	}
	if diff := cmp.Diff(want, values); diff != "" {
		t.Error(diff)
	}
}

func TestConnectionLimit(t *testing.T) {
	clock := newClock()
	_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Now: clock.Now})
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for range 2 * maxConnections {
		c, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	closed := 0
	for _, c := range open[maxConnections:] {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if _, err := c.Read(make([]byte, 1)); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			closed++
		}
	}
	if closed != maxConnections {
		t.Errorf("%d of %d were closed", closed, maxConnections)
	}
	for _, c := range open {
		_ = c.Close()
	}
	testenv.Eventually(t, "a new connection is accepted", func() error {
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Get(base + statusPath)
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	})
}

func TestTokenWithoutSubjectUsesWorkloadToken(t *testing.T) {
	clock := newClock()
	from := returning(clock, time.Hour)
	s, _, _ := start(t, Config{Exchanger: from, Now: clock.Now, Check: workloadCheck, Own: fixed(workloadToken(t))})
	token, err := s.Token(t.Context(), Request{Scope: "a"})
	if err != nil || token.Access != "access-1" || string(from.requests[0].Subject) != workloadToken(t) {
		t.Errorf("got %v, %v", token, err)
	}
}

func TestOnlyTheWorkloadsOwnTokensAreExchanged(t *testing.T) {
	clock := newClock()
	of := func(issuer, subject string) string {
		return jwt(t, map[string]any{"iss": issuer, "sub": subject, "aud": "another", "exp": noon.Add(time.Hour).Unix()})
	}
	own := fixed(of("https://issuer.example", "system:serviceaccount:shop:web"))
	_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Now: clock.Now, Own: own})
	for token, status := range map[string]int{
		of("https://issuer.example", "system:serviceaccount:shop:web"): 200,
		of("https://issuer.example", "system:serviceaccount:shop:db"):  400,
		of("https://other.example", "system:serviceaccount:shop:web"):  400,
	} {
		if got := post(t, base, formType, form(t, "subject_token", token)); got.Status != status {
			t.Errorf("got %d %s, want %d", got.Status, got.raw, status)
		}
	}
	for name, own := range map[string]Fetcher{"missing": FileFetcher{Path: "missing"}, "no JWT": fixed("opaque")} {
		_, base, _ := start(t, Config{Exchanger: returning(clock, time.Hour), Now: clock.Now, Own: own})
		if got := post(t, base, formType, form(t)); got.Status != 500 || !strings.Contains(got.Description, "own token") {
			t.Errorf("%s: got %d %s", name, got.Status, got.raw)
		}
	}
}

func TestCachedTokenServesRenewedWorkloadToken(t *testing.T) {
	clock := newClock()
	of := func(id string) string {
		return jwt(t, map[string]any{"iss": "https://issuer.example", "sub": "system:serviceaccount:shop:web", "jti": id, "exp": noon.Add(time.Hour).Unix()})
	}
	file := filepath.Join(t.TempDir(), "token")
	mount := func(token string) {
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	from := returning(clock, time.Hour)
	_, base, _ := start(t, Config{Exchanger: from, Now: clock.Now, Own: FileFetcher{Path: file}})
	mount(of("1"))
	if got := post(t, base, formType, form(t, "subject_token", of("1"))); got.AccessToken != "access-1" {
		t.Fatal(got.raw)
	}
	// The kubelet renews the token while the exchange server is unavailable.
	from.mu.Lock()
	from.do = func(context.Context, int, Request) (Token, error) { return Token{}, errors.New("away") }
	from.mu.Unlock()
	mount(of("2"))
	if got := post(t, base, formType, form(t, "subject_token", of("2"))); got.AccessToken != "access-1" {
		t.Errorf("with the next token: %d %s", got.Status, got.raw)
	}
	for _, other := range []string{"1", "forged"} {
		if got := post(t, base, formType, form(t, "subject_token", of(other))); got.Status != http.StatusInternalServerError {
			t.Errorf("an unverified token with the same claims: %d %s", got.Status, got.raw)
		}
	}
}

func TestStopCancelsExchanges(t *testing.T) {
	asked := make(chan struct{})
	s, err := New(Config{Address: "127.0.0.1:0", Exchanger: &exchanger{do: func(ctx context.Context, _ int, _ Request) (Token, error) {
		close(asked)
		<-ctx.Done()
		return Token{}, ctx.Err()
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	left, leave := context.WithCancel(t.Context())
	go func() { <-asked; leave(); cancel() }()
	if _, err := s.Token(left, Request{Subject: Secret(workloadToken(t)), SubjectType: JWTType}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

type fixed Secret

func (f fixed) Fetch(context.Context) (Secret, error) { return Secret(f), nil }

func TestSecretIsNeverPrinted(t *testing.T) {
	var out testenv.Buffer
	r := Request{Subject: "hush-hush", Actor: "hush-hush"}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
		fmt.Fprintf(&out, verb+" "+verb+" "+verb+"\n", r, &r, r.Subject)
	}
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "request", r, "secret", r.Subject)
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "request", r, "secret", r.Subject)
	for _, hidden := range []string{"hush", "68757368"} {
		if strings.Contains(out.String(), hidden) {
			t.Errorf("a secret was printed:\n%s", out.String())
		}
	}
}

func TestWithoutCredentials(t *testing.T) {
	for text, kept := range map[string]bool{
		"https://sts.googleapis.com/v1/token: status 403":                                                     true,
		"service-1234@gcp-sa-meshdataplane.iam.gserviceaccount.com":                                           true,
		"https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/x@y.iam.gserviceaccount.com:gAT": true,
		"exchange.authorization.svc.cluster.local:15012":                                                      true,
		"eyJhbGciOiJub25lIn0.e30.x":                                                                           false,
		"token ya29.short-one":                                                                                false,
		"0123456789abcdef0123456789abcdef":                                                                    false,
		"abc/def+0123456789ABCDEF0123456789abcdefghij==":                                                      false,
	} {
		if got := presentable(text); (got == text) != kept {
			t.Errorf("%q became %q", text, got)
		}
	}
}
