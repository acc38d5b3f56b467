package status

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
	"github.com/pilotfish-mesh/pilotfish/internal/testpki"
)

const openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"

// prometheusAccept is the Accept header of Prometheus 2.42.
const prometheusAccept = "application/openmetrics-text;version=1.0.0;q=0.8,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"

// target runs an application with handler answer and returns it as a scrape target.
func target(t *testing.T, name string, answer http.HandlerFunc) Application {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return Application{Name: name, URL: s.URL + "/metrics"}
}

func typed(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

func TestFormatFollowsScraperAndApplications(t *testing.T) {
	inText, inOpen := typed("text/plain; version=0.0.4", "# TYPE app_text_total counter\napp_text_total 1\n"),
		typed(openMetrics, "# TYPE app_open counter\napp_open_total 1 # {trace_id=\"abc\"} 1\n# EOF\n")
	for _, c := range []struct {
		name   string
		apps   []http.HandlerFunc
		accept string
		want   string // Content-Type of the response
		lines  []string
	}{
		{"text for who takes text", []http.HandlerFunc{inOpen}, "text/plain", "text/plain; version=0.0.4; charset=utf-8", []string{"\n# TYPE app_open_total counter\napp_open_total 1\n"}},
		{"text where the application speaks text", []http.HandlerFunc{inText}, prometheusAccept, "text/plain; version=0.0.4; charset=utf-8", []string{"\napp_text_total 1\n"}},
		{"OpenMetrics where it speaks that", []http.HandlerFunc{inOpen}, prometheusAccept, openMetrics, []string{"# TYPE app_open counter\napp_open_total 1 # {trace_id=\"abc\"} 1\n", "# TYPE envoy_x counter\nenvoy_x_total 1\n"}},
		{"mixed is text", []http.HandlerFunc{inOpen, inText}, prometheusAccept, "text/plain; version=0.0.4; charset=utf-8", []string{"\napp_open_total 1\n", "\napp_text_total{scrape_target=\"app1\"} 1\n"}},
		{"who takes OpenMetrics only gets that", []http.HandlerFunc{inText}, "application/openmetrics-text", openMetrics, []string{"# TYPE app_text counter\napp_text_total 1\n"}},
		{"without an application it is text", nil, prometheusAccept, "text/plain; version=0.0.4; charset=utf-8", []string{"\nenvoy_x_total 1\n"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := envoyAt(fakeEnvoy(t, text("# TYPE envoy_x_total counter\nenvoy_x_total 1\n")))
			for i, app := range c.apps {
				m.Applications = append(m.Applications, target(t, fmt.Sprintf("app%d", i), app))
			}
			_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: m})
			a := call(t, "GET", url+"/stats/prometheus", "Accept", c.accept)
			if got := a.header.Get("Content-Type"); got != c.want {
				t.Errorf("the type is %q", got)
			}
			for _, line := range append(c.lines, "\nagent_answer 42\n") {
				if !strings.Contains(a.body, line) {
					t.Errorf("%q lacks %q", a.body, line)
				}
			}
			if eofs := strings.Count(a.body, "# EOF"); c.want == openMetrics && (eofs != 1 || !strings.HasSuffix(a.body, "\n# EOF\n")) || c.want != openMetrics && eofs != 0 {
				t.Errorf("%d times # EOF: %q", eofs, a.body)
			}
		})
	}
}

func TestScrapersHeadersReachTheApplication(t *testing.T) {
	got := make(chan http.Header, 1)
	app := target(t, "app", func(_ http.ResponseWriter, r *http.Request) { got <- r.Header })
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{app}}})
	call(t, "GET", url+"/metrics", "Accept", prometheusAccept, "User-Agent", "Prometheus/2.42", timeoutHeader, "8", "Authorization", "secret", "Cookie", "secret")
	h := <-got
	if h.Get("User-Agent") != "Prometheus/2.42" || h.Get(timeoutHeader) != "8" || h.Get("Accept") != acceptBoth || h.Get("Authorization")+h.Get("Cookie")+h.Get("Accept-Encoding") != "" {
		t.Errorf("%v", h)
	}
}

func TestApplicationIsScrapedOverHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(text("app_x 1\n"))
	s.TLS = testpki.New(t, "private").ServerConfig(t, "some.name")
	s.StartTLS()
	defer s.Close()
	if !strings.HasPrefix(s.URL, "https://") || s.TLS.MinVersion < tls.VersionTLS12 {
		t.Fatal(s.URL)
	}
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{{Name: "app", URL: s.URL}}}})
	if a := call(t, "GET", url+"/metrics"); parse(t, a.body)["app_x"] == nil {
		t.Errorf("%q", a.body)
	}
}

func TestApplicationIsScrapedAtEitherLoopbackAddress(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: text("app_x 1\n")}}
	s.Start()
	defer s.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{{Name: "app", URL: "http://localhost:" + port}}}})
	if a := call(t, "GET", url+"/metrics"); parse(t, a.body)["app_x"] == nil {
		t.Errorf("%q", a.body)
	}
}

// hostile returns handlers of malicious or broken applications.
func hostile(stop <-chan struct{}) map[string]http.HandlerFunc {
	forever := func(kind string, line func(i int) string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			for i := 0; r.Context().Err() == nil; i++ {
				if _, err := io.WriteString(w, line(i)); err != nil {
					return
				}
			}
		}
	}
	hang := func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-stop:
		}
	}
	return map[string]http.HandlerFunc{
		"hangs": hang,
		"hangs within a family": func(w http.ResponseWriter, r *http.Request) {
			text("# TYPE app_hang counter\napp_hang 1\napp_hang{x=")(w, r)
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		},
		"hangs in its headers, byte by byte": func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer func() { _ = conn.Close() }()
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: ")
			tick := time.NewTicker(20 * time.Millisecond)
			defer tick.Stop()
			for err == nil {
				select {
				case <-tick.C:
					_, err = conn.Write([]byte("x"))
				case <-stop:
					return
				}
			}
		},
		"series without end":   forever("text/plain", func(i int) string { return fmt.Sprintf("app_series{n=\"%d\"} 1\n", i) }),
		"families without end": forever("text/plain", func(i int) string { return fmt.Sprintf("app_family_%d 1\n", i) }),
		"a line without end":   forever("text/plain", func(int) string { return "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" }),
		"OpenMetrics without end": forever(openMetrics, func(i int) string {
			return fmt.Sprintf("# TYPE app_om_%d gauge\napp_om_%d 1\n", i%9, i%9)
		}),
		"a gzip bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 64 {
				if _, err := z.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
			_ = z.Close()
		},
		"an error": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "app_x 1", http.StatusTeapot) },
		"a page":   typed("text/html", "<html>"),
		"another place": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.41.2.9:1/x", http.StatusFound)
		},
		"itself, for ever": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"huge headers":     func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
		"broken off": func(w http.ResponseWriter, r *http.Request) {
			text("app_x 1\n")(w, r)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		},
		"OpenMetrics cut off": typed(openMetrics, "# TYPE app_x gauge\napp_x 1\n"),
		"other names":         text("# TYPE istio_agent_scrape_source_up counter\nagent_answer 7\nenvoy_x 7\nistio_agent_scrape_source_up 7\n# TYPE agent_answer summary\n# EOF\n\xff\xfe{} 1\n"),
	}
}

func TestHostileApplicationCostsOnlyItsOwnPart(t *testing.T) {
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	envoy := fakeEnvoy(t, text("# TYPE envoy_x counter\nenvoy_x 1\n"))
	good := target(t, "good/metrics", text("# TYPE good_x counter\ngood_x 1\n"))
	for name, answer := range hostile(stop) {
		for place, apps := range map[string]func(bad Application) []Application{
			"alone": func(bad Application) []Application { return []Application{bad} },
			"first": func(bad Application) []Application { return []Application{bad, good} },
			"later": func(bad Application) []Application { return []Application{good, bad} },
		} {
			t.Run(name+", "+place, func(t *testing.T) {
				t.Parallel()
				registry := agentMetrics()
				m := envoyAt(envoy)
				m.MaxApplicationBytes = 8 << 20
				asked := make(chan struct{})
				tell := sync.OnceFunc(func() { close(asked) })
				m.Applications = apps(target(t, "bad/metrics", func(w http.ResponseWriter, r *http.Request) {
					tell()
					answer(w, r)
				}))
				if place == "alone" { // its metrics are written before Envoy's if it responds first
					address := fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
						<-asked
						text("# TYPE envoy_x counter\nenvoy_x 1\n")(w, r)
					})
					m.Envoy = func() string { return address }
				}
				_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: m})
				wait := "60"
				if strings.HasPrefix(name, "hangs") {
					wait = "4"
				}
				a := call(t, "GET", url+"/metrics", timeoutHeader, wait)
				f := parse(t, a.body)
				for _, want := range []string{"agent_answer", "envoy_x", "good_x", "istio_agent_scrape_source_up"} {
					if want == "good_x" && place == "alone" {
						continue
					}
					if len(f[want].GetMetric()) != 1 && want != "istio_agent_scrape_source_up" || f[want] == nil {
						t.Errorf("%s: %v", want, f[want])
					}
				}
				whole := name == "other names"
				if got := strings.Contains(a.body, `istio_agent_scrape_source_up{source="application",target="bad/metrics"} 0`); got == whole {
					t.Errorf("reported as missing: %v\n%.3000s", got, tail(a.body))
				}
				if got := strings.Contains(a.body, "# pilotfish: application bad/metrics is "); got == whole {
					t.Errorf("named in a comment: %v\n%.3000s", got, tail(a.body))
				}
				if place != "alone" && !strings.Contains(a.body, `istio_agent_scrape_source_up{source="application",target="good/metrics"} 1`) {
					t.Errorf("the other application: %s", tail(a.body))
				}
				if again := failures(parse(t, gatherText(t, registry)), "application"); (again == 0) != whole {
					t.Errorf("%v failures counted", again)
				}
			})
		}
	}
}

func tail(s string) string { return s[max(0, len(s)-2000):] }

func gatherText(t *testing.T, g prometheus.Gatherer) string {
	t.Helper()
	s := &Server{Config: Config{Gatherer: g}}
	text, err := s.gather(&bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestEnvoyThatHangsLeavesTimeForTheApplication(t *testing.T) {
	m := envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		text("# TYPE envoy_x counter\nenvoy_x 1\n")(w, r)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	m.Applications = []Application{target(t, "app", text("app_x 1\n"))}
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: m})
	a := call(t, "GET", url+"/metrics", timeoutHeader, "1")
	f := parse(t, a.body)
	if f["envoy_x"] == nil || f["app_x"] == nil || !strings.Contains(a.body, "# pilotfish: envoy is incomplete: the complete response did not arrive in time") {
		t.Errorf("%q", a.body)
	}
}

// series returns samples of one metric with the numbers from from to to as label values.
func series(name string, from, to int) string {
	var b strings.Builder
	for n := from; n < to; n++ {
		fmt.Fprintf(&b, "%s{n=\"%d\"} 1\n", name, n)
	}
	return b.String()
}

// TestFiveMillionSeriesNeedNoMemory: five million series in one scrape do not increase the server's memory. Storing
// eight bytes per series would be detected. The scrape must finish within the maximum of one minute.
func TestFiveMillionSeriesNeedNoMemory(t *testing.T) {
	runtime.GC() // free the memory of earlier tests
	app := target(t, "big/metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "# TYPE app_series gauge\n")
		for n := range 500 {
			if _, err := io.WriteString(w, series("app_series", n*10_000, (n+1)*10_000)); err != nil {
				return
			}
		}
	})
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: Metrics{Applications: []Application{app}, MaxApplicationBytes: 1 << 30}})
	req, _ := http.NewRequestWithContext(t.Context(), "GET", url+"/metrics", nil)
	req.Header.Set(timeoutHeader, "60")
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var most atomic.Uint64
	counter := &lineCounter{each: func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most.Store(max(most.Load(), m.HeapAlloc))
	}}
	if _, err := io.Copy(counter, resp.Body); err != nil {
		t.Fatal(err)
	}
	if counter.lines < 5_000_000 {
		t.Errorf("%d lines", counter.lines)
	}
	if most.Load() > 32<<20 { // the heap includes that of the test's client and application
		t.Errorf("the heap grew to %d MB", most.Load()>>20)
	}
}

// lineCounter counts lines, and measures the heap every 16 MB.
type lineCounter struct {
	lines, bytes int
	each         func()
}

func (c *lineCounter) Write(p []byte) (int, error) {
	c.lines += bytes.Count(p, []byte("\n"))
	if before := c.bytes >> 24; (c.bytes+len(p))>>24 != before {
		c.each()
	}
	c.bytes += len(p)
	return len(p), nil
}

func TestApplicationsLimitIsTheOneThatIsSet(t *testing.T) {
	app := target(t, "app", text("# TYPE app_x gauge\n"+series("app_x", 0, 100_000)))
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{app}, MaxApplicationBytes: 1 << 20}})
	a := call(t, "GET", url+"/metrics")
	if len(a.body) > 1<<20+4096 || !strings.Contains(a.body, "is incomplete: it has more than 1048576 bytes") {
		t.Errorf("%d bytes, %s", len(a.body), tail(a.body))
	}
}

func TestMetricsForLoopbackOnly(t *testing.T) {
	for only, code := range map[bool]int{true: 403, false: 200} {
		s, err := New(Config{Address: "127.41.2.1:0", Metrics: Metrics{OnlyLoopback: only}})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{"/metrics", "/stats/prometheus"} {
			for from, want := range map[string]int{"10.0.0.7:4711": code, "127.0.0.1:4711": 200} {
				w := newRecorder()
				r, _ := http.NewRequestWithContext(t.Context(), "GET", "http://x"+path, nil)
				r.RemoteAddr = from
				s.http.Handler.ServeHTTP(w, r)
				if w.code != want {
					t.Errorf("%s from %s: %d, want %d", path, from, w.code, want)
				}
			}
		}
		_ = s.Close()
	}
}

func TestScrapesBeyondTheLimitWaitForTheirTurn(t *testing.T) {
	asked, release := make(chan struct{}, 100), make(chan struct{})
	app := target(t, "app", func(w http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-release
		text("app_x 1\n")(w, r)
	})
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{app}}})
	answers := make(chan answer, maxScrapesPerClient+1)
	for range maxScrapesPerClient + 1 {
		go func() { answers <- call(t, "GET", url+"/metrics", timeoutHeader, "30") }()
	}
	for range maxScrapesPerClient {
		<-asked
	}
	if a := call(t, "GET", url+"/metrics", timeoutHeader, "0.05"); a.code != 503 || !strings.Contains(a.body, "too many concurrent scrapes") {
		t.Errorf("%d %q", a.code, a.body)
	}
	close(release)
	for range maxScrapesPerClient + 1 {
		if a := <-answers; a.code != 200 || !strings.Contains(a.body, "app_x 1\n") {
			t.Errorf("%d %q", a.code, a.body)
		}
	}
}

// TestMergeAddsNothingThatPromtoolComplainsOf: promtool reports only those problems of the merged scrape that it also
// reports of the sources.
func TestMergeAddsNothingThatPromtoolComplainsOf(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			addr := startEnvoyOf(t, testenv.EnvoyOf(t, version))
			registry := agentMetrics()
			m := envoyAt("http://" + addr + "/stats/prometheus")
			app := "# HELP app_requests_total Requests.\n# TYPE app_requests_total counter\napp_requests_total 1\n# HELP app_seconds It.\n# TYPE app_seconds histogram\napp_seconds_bucket{le=\"+Inf\"} 1\napp_seconds_sum 1\napp_seconds_count 1\n"
			m.Applications = []Application{target(t, "1", text(app)), target(t, "2", text(app))}
			_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: m})
			a := call(t, "GET", url+"/metrics")
			direct := call(t, "GET", "http://"+addr+"/stats/prometheus")
			complaints := lint(t, direct.body)
			for c := range lint(t, a.body) {
				if !complaints[c] {
					t.Errorf("new: %s", c)
				}
			}
			if got := len(parse(t, a.body)["app_seconds"].GetMetric()); got != 2 {
				t.Errorf("app_seconds of %d applications", got)
			}
			for name := range parse(t, direct.body) {
				if parse(t, a.body)[name] == nil {
					t.Errorf("%s of Envoy is missing", name)
				}
			}
		})
	}
}

func lint(t *testing.T, body string) map[string]bool {
	t.Helper()
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	found := map[string]bool{}
	for _, p := range problems {
		found[p.Metric+": "+p.Text] = true
	}
	return found
}

// Readers of OpenMetrics reject a scrape with a repeated series; other readers accept it.
func TestRepeatedSeriesIsWrittenOnceInOpenMetrics(t *testing.T) {
	app := target(t, "app", text("# TYPE app_x gauge\napp_x{a=\"b\"} 1\napp_x{a=\"c\"} 1\napp_x{a=\"b\"} 1\n"))
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{app}}})
	for accept, want := range map[string]int{openMetrics: 1, "text/plain": 2} {
		a := call(t, "GET", url+"/metrics", "Accept", accept)
		if n := strings.Count(a.body, "\napp_x{a=\"b\"} 1\n"); n != want {
			t.Errorf("with %s the series occurs %d times, want %d:\n%s", accept, n, want, a.body)
		}
	}
}
