package status

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/pilotfish-mesh/pilotfish/internal/probe"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const appAddress = "127.106.2.2"

// probed runs an application with handler h. It returns a function that returns the probe of a path.
func probed(t testing.TB, h http.HandlerFunc) func(path string) probe.Spec {
	t.Helper()
	l, err := net.Listen("tcp", appAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	port := portOf(l)
	return func(path string) probe.Spec {
		return probe.Spec{HTTP: &probe.HTTP{Host: appAddress, Port: port, Path: path}, Timeout: 20 * time.Second}
	}
}

func portOf(l net.Listener) uint16 { return netip.MustParseAddrPort(l.Addr().String()).Port() }

func TestApplicationProbesAreAnsweredByTheApplication(t *testing.T) {
	spec := probed(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/well":
			_, _ = fmt.Fprintf(w, "%s %s %s", r.Method, r.Host, r.Header.Get("X-From"))
		case "/ill":
			http.Error(w, "no database", http.StatusServiceUnavailable)
		case "/long":
			_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
		case "/hints":
			w.WriteHeader(http.StatusNoContent)
		case "/away":
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusMovedPermanently)
		}
	})
	taken := spec("")
	closed, err := net.Listen("tcp", appAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	h := health.NewServer()
	h.SetServingStatus("stopped", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	registry := prometheus.NewRegistry()
	_, url := run(t, Config{Gatherer: registry, Registerer: registry, AppProbes: AppProbes{Paths: map[string]probe.Spec{
		"/app-health/web/livez":       spec("/well"),
		"/app-health/web/readyz":      spec("/ill"),
		"/app-health/web/startupz":    spec("/long"),
		"/app-lifecycle/web/prestopz": spec("/away"),
		"/app-health/empty/livez":     spec("/hints"),
		"/app-health/tcp/livez":       {TCP: &probe.TCP{Host: appAddress, Port: taken.HTTP.Port}, Timeout: 20 * time.Second},
		"/app-health/tcp/readyz":      {TCP: &probe.TCP{Host: appAddress, Port: portOf(closed)}, Timeout: 20 * time.Second},
		"/app-health/gone/livez":      {HTTP: &probe.HTTP{Host: appAddress, Port: portOf(closed)}, Timeout: 20 * time.Second},
		"/app-health/grpc/livez":      grpcApp(t, h, ""),
		"/app-health/grpc/readyz":     grpcApp(t, h, "stopped"),
	}}})
	port := url[strings.LastIndexByte(url, ':')+1:]
	for _, c := range []struct {
		method, path string
		header       []string
		code         int
		body         string // prefix of the response body
	}{
		{"GET", "/app-health/web/livez", []string{"X-From", "kubelet"}, 200, fmt.Sprintf("GET 127.41.2.1:%d kubelet", taken.HTTP.Port)},
		{"POST", "/app-health/web/livez", nil, 200, "GET "},
		{"HEAD", "/app-health/web/livez", nil, 200, ""},
		{"GET", "/app-health/web/livez?x=y", nil, 200, "GET "},
		{"GET", "/app-health/web/readyz", nil, 503, "no database\n"},
		{"GET", "/app-health/web/startupz", nil, 200, strings.Repeat("x", 10<<10)},
		{"GET", "/app-lifecycle/web/prestopz", nil, 200, ""},
		{"GET", "/app-health/empty/livez", nil, 204, ""},
		{"GET", "/app-health/tcp/livez", nil, 200, ""},
		{"GET", "/app-health/tcp/readyz", nil, 500, "TCP "},
		{"GET", "/app-health/gone/livez", nil, 500, "GET "},
		{"GET", "/app-health/grpc/livez", nil, 200, ""},
		{"GET", "/app-health/grpc/readyz", nil, 500, "gRPC "},
		{"GET", "/app-health/web/prestopz", nil, 400, "no application probe"},
		{"GET", "/app-health/other/livez", nil, 400, "no application probe"},
		{"GET", "/app-health/", nil, 400, "no application probe"},
		{"GET", "/app-lifecycle/web/poststartz", nil, 400, "no application probe"},
	} {
		a := call(t, c.method, url+c.path, c.header...)
		if a.code != c.code || !strings.HasPrefix(a.body, c.body) || len(a.body) > 10<<10 {
			t.Errorf("%s %s: %d %.80q, want %d %.80q", c.method, c.path, a.code, a.body, c.code, c.body)
		}
	}
	metrics := call(t, "GET", url+"/metrics").body
	for _, want := range []string{`path="/app-health/web/livez",result="success"} 4`, `path="/app-health/web/livez",result="failure"} 0`,
		`path="/app-health/web/readyz",result="failure"} 1`, `path="/app-health/tcp/readyz",result="failure"} 1`, `path="/app-health/grpc/readyz",result="refused"} 0`} {
		if !strings.Contains(metrics, "\npilotfish_application_probes_total{"+want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	// A Host header that the kubelet sets reaches the application unchanged, except that the agent's port is replaced
	// by the application's port.
	for asked, want := range map[string]string{
		"shop.example": "shop.example", "shop.example:" + port: fmt.Sprintf("shop.example:%d", taken.HTTP.Port),
		"shop.example:81": "shop.example:81", "[fd00::1]:" + port: fmt.Sprintf("[fd00::1]:%d", taken.HTTP.Port),
	} {
		if got := getAs(t, url+"/app-health/web/livez", asked); !strings.HasPrefix(got, "GET "+want+" ") {
			t.Errorf("host %s: %q, want %s", asked, got, want)
		}
	}
}

// getAs sends a request with a Host header and returns the body.
func getAs(t *testing.T, url, host string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func grpcApp(t *testing.T, h *health.Server, service string) probe.Spec {
	t.Helper()
	l, err := net.Listen("tcp", appAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, h)
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return probe.Spec{GRPC: &probe.GRPC{Host: appAddress, Port: portOf(l), Service: service}, Timeout: 20 * time.Second}
}

func TestRedirectToTheAgentIsRefused(t *testing.T) {
	var asked atomic.Int32
	var agent atomic.Value
	spec := probed(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, agent.Load().(string)+"/app-health/web/livez", http.StatusFound)
	})
	_, url := run(t, Config{Address: appAddress + ":0", AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-health/web/livez": spec("/")}}})
	agent.Store(url)
	if a := call(t, "GET", url+"/app-health/web/livez"); a.code != 500 || !strings.Contains(a.body, "redirects to the agent itself") || asked.Load() != 1 {
		t.Errorf("%d %q after %d requests", a.code, a.body, asked.Load())
	}
}

func TestHookWithoutTimeoutLastsAsLongAsItsCaller(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	spec := probed(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(gone)
	})("/")
	spec.Timeout = 0
	var log testenv.Buffer
	_, url := run(t, Config{AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-lifecycle/web/prestopz": spec}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", url+"/app-lifecycle/web/prestopz", nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		ended <- err
	}()
	<-arrived
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	<-gone // the application's handler has returned
	if strings.Contains(log.String(), "does not respond") {
		t.Errorf("a cancelled request is logged as a failure of the application: %s", log.String())
	}
}

func TestProbeLimitAndQueue(t *testing.T) {
	release := make(chan struct{})
	var under, most atomic.Int32
	spec := probed(t, func(http.ResponseWriter, *http.Request) {
		n := under.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-release
		under.Add(-1)
	})("/")
	s, url := run(t, Config{AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-health/web/livez": spec}}})
	var codes [2]atomic.Int32 // 200, 503
	var all sync.WaitGroup
	for range maxProbes + maxWaiting {
		all.Go(func() {
			if code := codeOf(t, url+"/app-health/web/livez"); code == 200 {
				codes[0].Add(1)
			}
		})
	}
	p := s.app.paths["/app-health/web/livez"]
	testenv.Eventually(t, "the maximum number of probes is running", func() error {
		if len(p.queue) < maxProbes+maxWaiting {
			return fmt.Errorf("%d probes are running or queued", len(p.queue))
		}
		return nil
	})
	for range 20 {
		if code := codeOf(t, url+"/app-health/web/livez"); code == 503 {
			codes[1].Add(1)
		}
	}
	close(release)
	all.Wait()
	if ok, away := codes[0].Load(), codes[1].Load(); ok != maxProbes+maxWaiting || away != 20 || most.Load() > maxProbes {
		t.Errorf("%d succeeded, %d were rejected, at most %d ran concurrently", ok, away, most.Load())
	}
}

func codeOf(t *testing.T, url string) int {
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

func TestProbeFailureAndRecoveryAreLoggedOnce(t *testing.T) {
	var well atomic.Bool
	spec := probed(t, func(w http.ResponseWriter, _ *http.Request) {
		if !well.Load() {
			panic(http.ErrAbortHandler)
		}
	})("/")
	var log testenv.Buffer
	_, url := run(t, Config{AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-health/web/livez": spec}},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 5 {
		if a := call(t, "GET", url+"/app-health/web/livez"); a.code != 500 {
			t.Errorf("%d", a.code)
		}
	}
	well.Store(true)
	for range 5 {
		if a := call(t, "GET", url+"/app-health/web/livez"); a.code != 200 {
			t.Errorf("%d", a.code)
		}
	}
	if failed, again := strings.Count(log.String(), "does not respond to its probe"), strings.Count(log.String(), "again"); failed != 1 || again != 1 {
		t.Errorf("logged %d failures and %d recoveries: %s", failed, again, log.String())
	}
}

func TestSlowRequestBodyIsIgnored(t *testing.T) {
	spec := probed(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "well") })
	_, url := run(t, Config{AppProbes: AppProbes{Paths: map[string]probe.Spec{"/app-health/web/livez": spec("/")}}})
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	_, _ = io.WriteString(conn, "GET /app-health/web/livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nx")
	answer, err := io.ReadAll(conn)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200 ") {
		t.Errorf("%.100q %v", answer, err)
	}
}

func TestQueuedOutProbeIsNotAFailure(t *testing.T) {
	var log strings.Builder
	path, spec := "/app-health/web/livez", probe.Spec{}
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	app := newAppProbes(AppProbes{Paths: map[string]probe.Spec{path: spec}}, &net.TCPAddr{}, m.probes, slog.New(slog.NewTextHandler(&log, nil)))
	defer app.prober.Close()
	p := app.paths[path]
	p.record(t.Context(), probe.Response{}, errTooMany)
	p.record(t.Context(), probe.Response{Code: 200}, nil)
	if log.Len() != 0 {
		t.Errorf("logged: %s", log.String())
	}
	for result, counter := range map[string]prometheus.Counter{"success": p.succeeded, "refused": p.refused} {
		if n := testutil.ToFloat64(counter); n != 1 {
			t.Errorf("%s: %v", result, n)
		}
	}
}
