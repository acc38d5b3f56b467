package status

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/pilotfish-mesh/pilotfish/internal/health"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs a server until the end of a test and returns its base URL.
func run(t *testing.T, c Config) (s *Server, url string) {
	t.Helper()
	if c.Address == "" {
		c.Address = "127.41.2.1:0"
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run = %v, want nil at a clean end", err)
		}
	})
	return s, "http://" + s.Addr().String()
}

// answer is a response with its body.
type answer struct {
	code   int
	header http.Header
	body   string
}

func call(t *testing.T, method, url string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
		req.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func well() health.Condition { return health.Healthy }

func unwell(reason string) health.Check {
	return health.FromFunc(func() (bool, string) { return false, reason })
}

func TestWithoutPartsTheAgentIsReady(t *testing.T) {
	_, url := run(t, Config{})
	if a := call(t, "GET", url+"/healthz/ready?format=json"); a.code != 200 || !strings.Contains(a.body, `"reasons": []`) {
		t.Errorf("%d %q", a.code, a.body)
	}
}

func TestLivenessDoesNotDependOnReadiness(t *testing.T) {
	_, url := run(t, Config{Checks: []Check{{"x", unwell("no")}}, Liveness: []Check{{"loop", well}}})
	if a := call(t, "GET", url+"/healthz/live"); a.code != 200 || a.body != "alive\n" {
		t.Errorf("%d %q", a.code, a.body)
	}
	_, url = run(t, Config{Liveness: []Check{{"loop", unwell("stuck for 1m")}}})
	if a := call(t, "GET", url+"/healthz/live"); a.code != 503 || !strings.HasPrefix(a.body, "not alive\nloop: stuck for 1m\n  since ") {
		t.Errorf("%d %q", a.code, a.body)
	}
}

func TestOrdersWantPOSTAndComeOnce(t *testing.T) {
	for path, config := range map[string]func(func()) Config{
		"/drain":        func(f func()) Config { return Config{Drain: f} },
		"/quitquitquit": func(f func()) Config { return Config{Quit: f} },
	} {
		t.Run(path, func(t *testing.T) {
			done := make(chan bool, 9)
			_, url := run(t, config(func() { done <- true }))
			for _, method := range []string{"GET", "HEAD", "PUT", "DELETE"} {
				if a := call(t, method, url+path); a.code != 405 || a.header.Get("Allow") != "POST" {
					t.Errorf("%s: %d", method, a.code)
				}
			}
			if a := call(t, "POST", url+path, "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"); a.code != 403 {
				t.Errorf("from a web page: %d", a.code)
			}
			if a := call(t, "POST", url+path); a.code != 200 || a.body != "OK\n" {
				t.Errorf("POST: %d %q", a.code, a.body)
			}
			<-done
			if len(done) != 0 {
				t.Error("the action ran more than once")
			}
		})
	}
}

func TestOrderWithoutAnyoneToObeyIsNotFound(t *testing.T) {
	_, url := run(t, Config{})
	for _, path := range []string{"/drain", "/quitquitquit"} {
		if a := call(t, "POST", url+path); a.code != 404 {
			t.Errorf("%s: %d %q", path, a.code, a.body)
		}
	}
}

func TestQuitThatEndsTheServerIsAnswered(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := New(Config{Address: "127.41.2.1:0", Quit: cancel})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	if a := call(t, "POST", "http://"+s.Addr().String()+"/quitquitquit"); a.code != 200 {
		t.Errorf("%d", a.code)
	}
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
}

func TestOnlyLoopbackMayOrderAndLookInside(t *testing.T) {
	s, err := New(Config{Address: "127.41.2.1:0", Drain: func() { t.Error("drained") }, Quit: func() { t.Error("quit") }, Config: func() any { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	for _, c := range []struct {
		method, path, from string
		code               int
	}{
		{"POST", "/drain", "10.0.0.7:4711", 403},
		{"POST", "/quitquitquit", "[fd00::7]:4711", 403},
		{"POST", "/quitquitquit", "@", 403},
		{"GET", "/debug/config", "10.0.0.7:4711", 403},
		{"GET", "/debug/pprof/", "10.0.0.7:4711", 403},
		{"GET", "/debug/config", "[::1]:4711", 200},
		{"GET", "/debug/config", "[::ffff:127.0.0.1]:4711", 200},
		{"GET", "/healthz/ready", "10.0.0.7:4711", 200},
		{"GET", "/metrics", "10.0.0.7:4711", 200},
	} {
		w := newRecorder()
		r, _ := http.NewRequestWithContext(t.Context(), c.method, "http://localhost"+c.path, nil)
		r.RemoteAddr = c.from
		s.http.Handler.ServeHTTP(w, r)
		if w.code != c.code {
			t.Errorf("%s %s from %s: %d, want %d", c.method, c.path, c.from, w.code, c.code)
		}
	}
}

func TestPrivatePagesRefuseWebPagesAndCallers(t *testing.T) {
	private := []struct{ method, path string }{{"POST", "/drain"}, {"GET", "/debug/config"}, {"GET", "/debug/pprof/"}}
	public := []struct{ method, path string }{{"GET", "/healthz/ready"}, {"GET", "/metrics"}, {"GET", "/stats/prometheus"}}
	for _, c := range []struct {
		name   string
		refuse error
		header []string
		code   int // of private pages
		body   string
	}{
		{name: "an operator", code: 200},
		{name: "a caller that is refused", refuse: errors.New("not you"), code: 403, body: "not you"},
		{name: "DNS rebinding", header: []string{"Host", "evil.example:15020"}, code: 403, body: "evil.example"},
		{name: "a foreign origin", header: []string{"Origin", "http://evil.example"}, code: 403, body: "origin"},
	} {
		_, url := run(t, Config{
			Drain: func() {}, Config: func() any { return 1 }, Checks: []Check{{"x", well}},
			CheckCaller: func(client, server netip.AddrPort) error {
				if !client.Addr().IsLoopback() || !server.Addr().IsLoopback() || client == server {
					t.Errorf("client %s, server %s", client, server)
				}
				return c.refuse
			},
		})
		for _, page := range private {
			if a := call(t, page.method, url+page.path, c.header...); a.code != c.code || !strings.Contains(a.body, c.body) {
				t.Errorf("%s, %s: %d %q", c.name, page.path, a.code, a.body)
			}
		}
		for _, page := range public { // a kubelet or Prometheus may use any name
			if a := call(t, page.method, url+page.path, c.header...); a.code != 200 {
				t.Errorf("%s, %s: %d %q", c.name, page.path, a.code, a.body)
			}
		}
	}
}

func TestRefusedCallersAreLoggedOnceAMinute(t *testing.T) {
	var log testenv.Buffer
	_, url := run(t, Config{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Drain: func() { t.Error("drained") },
		CheckCaller: func(netip.AddrPort, netip.AddrPort) error { return errors.New("not you") },
	})
	for range 5 {
		call(t, "POST", url+"/drain")
	}
	if n := strings.Count(log.String(), "request rejected"); n != 1 || !strings.Contains(log.String(), "path=/drain") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

// recorder stores the status code of a response.
type recorder struct {
	header http.Header
	code   int
}

func newRecorder() *recorder { return &recorder{header: make(http.Header), code: 200} }

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(code int)        { r.code = code }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }

func TestDebugPagesShowWhatTheirFunctionsGive(t *testing.T) {
	_, url := run(t, Config{
		Certificates: func() any { return []string{"spiffe://td/ns/a/sa/b"} },
		Config:       func() any { return make(chan int) },
	})
	if a := call(t, "GET", url+"/debug/certz"); a.code != 200 || a.header.Get("Content-Type") != "application/json" || a.body != "[\n  \"spiffe://td/ns/a/sa/b\"\n]\n" {
		t.Errorf("certz: %d %q", a.code, a.body)
	}
	if a := call(t, "GET", url+"/debug/xdsz"); a.code != 404 {
		t.Errorf("without a function: %d", a.code)
	}
	if a := call(t, "GET", url+"/debug/config"); a.code != 500 {
		t.Errorf("a result that is not valid JSON: %d", a.code)
	}
	if a := call(t, "GET", url+"/debug/pprof/goroutine?debug=1"); a.code != 200 || !strings.Contains(a.body, "goroutine profile") {
		t.Errorf("pprof: %d %.80q", a.code, a.body)
	}
	if a := call(t, "GET", url+"/"); a.code != 200 || !strings.Contains(a.body, "/healthz/ready") {
		t.Errorf("index: %d %q", a.code, a.body)
	}
	if a := call(t, "GET", url+"/nothing"); a.code != 404 {
		t.Errorf("unknown path: %d", a.code)
	}
}

func TestPortInUseIsAnErrorOfNewThatNamesTheHolder(t *testing.T) {
	l, err := net.Listen("tcp", "127.41.2.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, err = New(Config{Address: l.Addr().String()})
	if err == nil {
		t.Fatal("two servers listen on the same port")
	}
	for _, want := range []string{l.Addr().String(), "pid " + strconv.Itoa(os.Getpid()), "status.test"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
}

func TestCloseReleasesPort(t *testing.T) {
	s, err := New(Config{Address: "127.41.2.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestServerEndsAlthoughAProbeHangs(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	s, err := New(Config{Address: "127.41.2.1:0", Checks: []Check{{"stuck", func() health.Condition { close(asked); <-release; return health.Healthy }}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	client := make(chan struct{})
	go func() {
		defer close(client)
		transport := &http.Transport{DisableKeepAlives: true}
		req, _ := http.NewRequestWithContext(context.Background(), "GET", "http://"+s.Addr().String()+"/healthz/ready", nil)
		if resp, err := transport.RoundTrip(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	<-asked
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run = %v", err)
	}
	close(release)
	<-client
}

func TestMetricsThatAreRegisteredTwiceAreAnError(t *testing.T) {
	registry := prometheus.NewRegistry()
	run(t, Config{Registerer: registry})
	if _, err := New(Config{Address: "127.41.2.1:0", Registerer: registry}); err == nil {
		t.Error("no error")
	}
}
