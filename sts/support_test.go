package sts

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// noon is the initial time of the tests' clocks.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// clock is a clock that only the test advances.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: noon} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// jwt returns a token with the claims, signed with a random key.
func jwt(t testing.TB, claims map[string]any) string {
	t.Helper()
	return rawJWT(t, map[string]any{"alg": "RS256", "kid": "k1"}, claims)
}

func rawJWT(t testing.TB, header, claims any) string {
	t.Helper()
	encode := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(b)
	}
	return encode(header) + "." + encode(claims) + "." + base64.RawURLEncoding.EncodeToString([]byte("signature-of-the-workload"))
}

// workloadToken returns a token that the tests' servers accept.
func workloadToken(t testing.TB) string {
	return jwt(t, map[string]any{"iss": "https://issuer.example", "aud": []string{"mesh"}, "sub": "system:serviceaccount:shop:web",
		"exp": noon.Add(100 * 365 * 24 * time.Hour).Unix()})
}

var workloadCheck = Check{Issuers: []string{"https://issuer.example"}, Audiences: []string{"mesh"}}

// exchanger is an Exchanger whose behaviour a test sets.
type exchanger struct {
	mu       sync.Mutex
	requests []Request
	do       func(ctx context.Context, n int, r Request) (Token, error)
}

func (e *exchanger) Name() string { return "https://exchange.example/token" }

func (e *exchanger) Exchange(ctx context.Context, r Request) (Token, error) {
	e.mu.Lock()
	e.requests = append(e.requests, r)
	n := len(e.requests)
	e.mu.Unlock()
	return e.do(ctx, n, r)
}

func (e *exchanger) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.requests)
}

// returning returns an exchanger that issues the tokens access-1, access-2, … with the specified lifetime.
func returning(clock *clock, life time.Duration) *exchanger {
	return &exchanger{do: func(_ context.Context, n int, _ Request) (Token, error) {
		return Token{Access: Secret(fmt.Sprintf("access-%d", n)), IssuedType: AccessTokenType, Type: "Bearer", Expires: clock.Now().Add(life)}, nil
	}}
}

// start runs a server until the end of the test, and returns its address and its log.
func start(t *testing.T, config Config) (*Server, string, *testenv.Buffer) {
	t.Helper()
	logged := &testenv.Buffer{}
	config.Logger = slog.New(slog.NewTextHandler(logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if config.Address == "" {
		config.Address = "127.0.0.1:0"
	}
	s, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		if strings.Contains(logged.String(), "eyJ") {
			t.Errorf("a token was logged:\n%s", logged)
		}
	})
	return s, "http://" + s.Addr().String(), logged
}

// form returns the form of a valid request. changes are pairs of a parameter and its new value; "-" removes the
// parameter.
func form(t testing.TB, changes ...string) string {
	values := url.Values{
		"grant_type": {GrantType}, "subject_token": {workloadToken(t)}, "subject_token_type": {JWTType},
	}
	for i := 0; i < len(changes); i += 2 {
		if values.Set(changes[i], changes[i+1]); changes[i+1] == "-" {
			values.Del(changes[i])
		}
	}
	return values.Encode()
}

// result is the response to a token request.
type result struct {
	Status int
	Header http.Header
	answer
	Error       string `json:"error"`
	Description string `json:"error_description"`
	raw         string
}

func post(t testing.TB, base, contentType, body string) result {
	t.Helper()
	return send(t, http.MethodPost, base+TokenPath, contentType, body)
}

func send(t testing.TB, method, address, contentType, body string) result {
	t.Helper()
	request, err := http.NewRequest(method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	r := result{Status: response.StatusCode, Header: response.Header, raw: string(raw)}
	if bytes.HasPrefix(raw, []byte("{")) {
		if err := json.Unmarshal(raw, &r); err != nil {
			t.Fatalf("%s: %v", raw, err)
		}
	}
	return r
}
