package status

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// parse parses a response as Prometheus does, and fails the test if the response is invalid.
func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("the metrics are not valid: %v\n%.2000s", err, text)
	}
	return families
}

// agentMetrics returns a registry with one metric.
func agentMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "agent_answer", Help: "The answer."})
	g.Set(42)
	r.MustRegister(g)
	return r
}

// fakeEnvoy serves metrics until the end of the test.
func fakeEnvoy(t *testing.T, answer http.HandlerFunc) (url string) {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL + "/stats/prometheus"
}

func envoyAt(url string) Metrics { return Metrics{Envoy: func() string { return url }} }

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		_, _ = io.WriteString(w, body)
	}
}

func TestScrapeOfAgentAndRealEnvoyIsValid(t *testing.T) {
	addr := startEnvoy(t)
	registry := agentMetrics()
	_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: envoyAt("http://" + addr + "/stats/prometheus")})
	for _, path := range []string{"/metrics", "/stats/prometheus"} {
		a := call(t, "GET", url+path)
		families := parse(t, a.body)
		for _, name := range []string{"agent_answer", "istio_agent_scrapes_total", "envoy_server_live", "envoy_server_initialization_time_ms"} {
			if families[name] == nil {
				t.Errorf("%s lacks %s", path, name)
			}
		}
		if got := a.header.Get("Content-Type"); !strings.HasPrefix(got, "text/plain; version=0.0.4") {
			t.Errorf("%s has the type %q", path, got)
		}
	}
	filtered := parse(t, call(t, "GET", url+"/metrics?filter=server.live").body)
	if filtered["envoy_server_live"] == nil || filtered["envoy_server_initialization_time_ms"] != nil || filtered["agent_answer"] == nil {
		t.Error("the query does not reach Envoy")
	}
}

// startEnvoy starts a real Envoy and returns its admin address.
func startEnvoy(t *testing.T) (addr string) { return startEnvoyOf(t, testenv.Envoy(t)) }

func startEnvoyOf(t *testing.T, path string) (addr string) {
	t.Helper()
	dir := t.TempDir()
	config, address := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "address")
	if err := os.WriteFile(config, []byte("admin: {address: {socket_address: {address: 127.41.2.2, port_value: 0}}}"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path, "-c", config, "--disable-hot-restart", "--admin-address-path", address, "-l", "error")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	deadline := time.Now().Add(20 * time.Second)
	for time.Now().Before(deadline) {
		if data, err := os.ReadFile(address); err == nil && len(data) > 0 {
			return string(data)
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("Envoy did not write its admin address")
	return ""
}

func TestOneSourceThatFailsDoesNotLoseTheOther(t *testing.T) {
	const line = "# TYPE envoy_x counter\nenvoy_x{a=\"b\"} 1\n"
	for _, c := range []struct {
		name  string
		envoy http.HandlerFunc
		kept  bool // the scrape contains what Envoy sent before it failed
	}{
		{"not there", nil, false},
		{"an error", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "envoy_x 1", http.StatusInternalServerError)
		}, false},
		{"another format", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.google.protobuf")
			_, _ = io.WriteString(w, "\x01\x02")
		}, false},
		{"broken off within a line", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			_, _ = io.WriteString(w, line+"envoy_x{a=\"ha")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			registry := agentMetrics()
			config := Config{Gatherer: registry, Registerer: registry, Metrics: envoyAt("http://127.41.2.3:9/stats/prometheus")}
			if c.envoy != nil {
				config.Metrics = envoyAt(fakeEnvoy(t, c.envoy))
			}
			_, url := run(t, config)
			a := call(t, "GET", url+"/metrics")
			families := parse(t, a.body)
			if a.code != 200 || families["agent_answer"] == nil || (families["envoy_x"] != nil) != c.kept {
				t.Errorf("%d, %q", a.code, a.body)
			}
			again := parse(t, call(t, "GET", url+"/metrics").body)
			if got := failures(again, "envoy"); got != 1 && got != 2 { // the failure of the second scrape may already be counted
				t.Errorf("failures = %v", got)
			}
		})
	}
}

func failures(families map[string]*dto.MetricFamily, source string) float64 {
	for _, m := range families["istio_agent_scrape_failures_total"].GetMetric() {
		if m.GetLabel()[0].GetValue() == source {
			return m.GetCounter().GetValue()
		}
	}
	return -1
}

// brokenGatherer returns an error in addition to metrics.
type brokenGatherer struct{ prometheus.Gatherer }

func (b brokenGatherer) Gather() ([]*dto.MetricFamily, error) {
	if b.Gatherer == nil {
		return nil, errors.New("nothing to be had")
	}
	families, _ := b.Gatherer.Gather()
	return families, errors.New("one collector is broken")
}

func TestAgentsMetricsThatFailDoNotLoseEnvoys(t *testing.T) {
	envoy := fakeEnvoy(t, text("envoy_x 1\n"))
	_, url := run(t, Config{Gatherer: brokenGatherer{agentMetrics()}, Metrics: envoyAt(envoy)})
	if f := parse(t, call(t, "GET", url+"/metrics").body); f["agent_answer"] == nil || f["envoy_x"] == nil {
		t.Errorf("partly broken: %v", f)
	}
	_, url = run(t, Config{Gatherer: brokenGatherer{}, Metrics: envoyAt(envoy)})
	if a := call(t, "GET", url+"/metrics"); a.code != 200 || parse(t, a.body)["envoy_x"] == nil {
		t.Errorf("wholly broken: %d %q", a.code, a.body)
	}
	_, url = run(t, Config{Gatherer: brokenGatherer{}})
	if a := call(t, "GET", url+"/metrics"); a.code != 503 || !strings.Contains(a.body, "nothing to be had") {
		t.Errorf("no source left: %d %q", a.code, a.body)
	}
}

func TestSharedFamilyIsTheAgents(t *testing.T) {
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: envoyAt(fakeEnvoy(t, text(
		"# HELP agent_answer Another.\n# TYPE agent_answer counter\nagent_answer 7\n# TYPE envoy_x counter\nenvoy_x 1\n# a remark\nenvoy_x{y=\"z\"} 2\n# EOF\n")))})
	a := call(t, "GET", url+"/metrics")
	f := parse(t, a.body)
	if m := f["agent_answer"].GetMetric(); len(m) != 1 || m[0].GetGauge().GetValue() != 42 {
		t.Errorf("agent_answer = %v", m)
	}
	if len(f["envoy_x"].GetMetric()) != 2 || strings.Contains(a.body, "# EOF") {
		t.Errorf("%q", a.body)
	}
}

func TestScrapeIsCompressedForThoseWhoTakeIt(t *testing.T) {
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: envoyAt(fakeEnvoy(t, text("envoy_x 1\n")))})
	a := call(t, "GET", url+"/metrics", "Accept-Encoding", "gzip")
	z, err := gzip.NewReader(strings.NewReader(a.body))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(z)
	if err != nil || parse(t, string(plain))["envoy_x"] == nil {
		t.Errorf("%q, %v", plain, err)
	}
}

func TestScrapeIsNotCompressedForThoseWhoRefuse(t *testing.T) {
	for header, want := range map[string]bool{
		"": false, "gzip": true, "GZIP": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "gzip; q=0.000": false,
		"gzip;q=x": false, "xgzip": false, "br,identity": false,
	} {
		if got := accepts([]string{header}, "gzip"); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

func TestTargetOfAnyNameIsInTheReport(t *testing.T) {
	const name = "9001/\u200b\"\\"
	app := target(t, name, text("app_x 1\n"))
	_, url := run(t, Config{Metrics: Metrics{Applications: []Application{app}}})
	families := parse(t, call(t, "GET", url+"/metrics").body)
	found := 0
	for _, m := range families[sourceUp].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "target" && l.GetValue() == name {
				found++
			}
		}
	}
	if found != 1 {
		t.Errorf("%d series of the targets in %v", found, families[sourceUp])
	}
}

func TestSlowEnvoyIsLeftOutInTheScrapersTime(t *testing.T) {
	url := fakeEnvoy(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	_, status := run(t, Config{Gatherer: agentMetrics(), Metrics: envoyAt(url)})
	a := call(t, "GET", status+"/metrics", "X-Prometheus-Scrape-Timeout-Seconds", "0.05")
	if f := parse(t, a.body); a.code != 200 || f["agent_answer"] == nil {
		t.Errorf("%d %q", a.code, a.body)
	}
}

func TestScrapeTimeoutIsTheScrapersWithinBounds(t *testing.T) {
	for header, want := range map[string]time.Duration{
		"": scrapeTimeout, "10": 9 * time.Second, "0": scrapeTimeout, "-3": scrapeTimeout, "NaN": scrapeTimeout, "x": scrapeTimeout,
		"0.5": 450 * time.Millisecond, "1e-12": minScrape, "1e300": maxScrape, "+Inf": maxScrape,
	} {
		r := &http.Request{Header: http.Header{"X-Prometheus-Scrape-Timeout-Seconds": {header}}}
		if got := timeoutOf(r); got != want {
			t.Errorf("%q: %v, want %v", header, got, want)
		}
	}
}

func TestApplicationsHaveNoNamesOfEnvoyAndTheAgent(t *testing.T) {
	forged := text("# HELP istio_requests_total Forged.\n# TYPE istio_requests_total counter\nistio_requests_total{a=\"b\"} 666\n" +
		"# TYPE istio histogram\nistio_bucket{le=\"+Inf\"} 666\nistio_sum 666\nistio_count 666\n" +
		"envoy_cluster_forged 666\npilotfish_ready{part=\"forged\"} 666\nistio_agent_forged 666\nistiod_x 1\napp_x 1\n")
	m := envoyAt(fakeEnvoy(t, text("# TYPE envoy_x counter\nenvoy_x 1\n")))
	m.Applications = []Application{target(t, "one/metrics", forged), target(t, "two/metrics", forged)}
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: m})
	a := call(t, "GET", url+"/metrics")
	f := parse(t, a.body)
	if strings.Contains(a.body, "666") || strings.Contains(a.body, "Forged") || f["envoy_x"] == nil || len(f["app_x"].GetMetric()) != 2 || len(f["istiod_x"].GetMetric()) != 2 {
		t.Errorf("the scrape is\n%s", a.body)
	}
	for _, target := range []string{"one/metrics", "two/metrics"} {
		if !strings.Contains(a.body, sourceReserved+`{source="application",target="`+target+`"} 5`) ||
			!strings.Contains(a.body, "# pilotfish: application "+target+": 5 families are dropped") {
			t.Errorf("the families that were dropped from %s are not reported:\n%s", target, a.body)
		}
	}
	m.AllowReservedNames = true
	_, url = run(t, Config{Gatherer: agentMetrics(), Metrics: m})
	if a := call(t, "GET", url+"/metrics"); !strings.Contains(a.body, "envoy_cluster_forged 666") {
		t.Errorf("reserved names are allowed, but were dropped:\n%s", a.body)
	}
}
