package status

import (
	"net/http"
	"strings"
	"testing"
)

const packedStats = "# TYPE envoy_server_uptime gauge\nenvoy_server_uptime 3\n# TYPE envoy_istio_requests_total counter\n" +
	`envoy_istio_requests_total{pilotfish__reporter__response_code="source;200",own="x"} 5` + "\n"

// TestEnvoyStatisticsHaveUnpackedLabels: on Envoy's port with Envoy's names, in the merged scrape with Istio's names.
func TestEnvoyStatisticsHaveUnpackedLabels(t *testing.T) {
	var query string
	metrics := envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		query = r.URL.RawQuery
		text(packedStats)(w, r)
	}))
	_, url := run(t, Config{Metrics: metrics})
	got := call(t, "GET", url+"/stats/envoy?usedonly")
	want := strings.ReplaceAll(packedStats, `pilotfish__reporter__response_code="source;200"`, `reporter="source",response_code="200"`)
	if got.code != http.StatusOK || got.body != want || query != "usedonly" {
		t.Errorf("%d %s query %q", got.code, got.body, query)
	}
	parse(t, got.body)
	merged := call(t, "GET", url+"/metrics").body
	if !strings.Contains(merged, "\n"+`istio_requests_total{reporter="source",response_code="200",own="x"} 5`+"\n") {
		t.Error(merged)
	}
	parse(t, merged)
}

// TestEnvoyStatisticsAreServedWithoutMerging: Envoy's port depends on them also if the merged scrape omits them.
func TestEnvoyStatisticsAreServedWithoutMerging(t *testing.T) {
	metrics := envoyAt(fakeEnvoy(t, text(packedStats)))
	metrics.WithoutEnvoy = true
	registry := agentMetrics()
	_, url := run(t, Config{Gatherer: registry, Registerer: registry, Metrics: metrics})
	if got := call(t, "GET", url+"/stats/envoy"); got.code != http.StatusOK || !strings.Contains(got.body, "envoy_server_uptime") {
		t.Errorf("%+v", got)
	}
	if got := call(t, "GET", url+"/metrics"); got.code != http.StatusOK || strings.Contains(got.body, "envoy_server_uptime") {
		t.Errorf("%+v", got)
	}
}

// TestMissingEnvoyStatisticsAreAnError, and incomplete ones end with a broken connection.
func TestMissingEnvoyStatisticsAreAnError(t *testing.T) {
	_, url := run(t, Config{Metrics: envoyAt("")})
	if got := call(t, "GET", url+"/stats/envoy"); got.code != http.StatusServiceUnavailable {
		t.Errorf("%+v", got)
	}
	_, url = run(t, Config{Metrics: envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))})
	if got := call(t, "GET", url+"/stats/envoy"); got.code != http.StatusServiceUnavailable || !strings.Contains(got.body, "418") {
		t.Errorf("%+v", got)
	}
	_, url = run(t, Config{Metrics: envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100000")
		text(packedStats)(w, r)
	}))})
	if response, err := http.Get(url + "/stats/envoy"); err == nil {
		defer response.Body.Close()
		if _, err := response.Body.Read(make([]byte, 100000)); err == nil {
			t.Error("an incomplete response looks complete")
		}
	}
}
