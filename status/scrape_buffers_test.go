package status

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// TestConcurrentScrapesAreComplete: concurrent scrapes do not share buffers. Later scrapes reuse the buffers, without
// data of earlier scrapes.
func TestConcurrentScrapesAreComplete(t *testing.T) {
	var stats strings.Builder
	for f := range 30 {
		fmt.Fprintf(&stats, "# HELP envoy_cluster_statistic_%d It.\n# TYPE envoy_cluster_statistic_%[1]d counter\n", f)
		for s := range 300 {
			fmt.Fprintf(&stats, "envoy_cluster_statistic_%d{cluster_name=\"other-%d\"} %d\n", f, s, f*s)
		}
	}
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: envoyAt(fakeEnvoy(t, text(stats.String())))})
	var scrapers sync.WaitGroup
	for i := range 2 { // the maximum number of concurrent scrapes per address
		scrapers.Go(func() {
			for range 10 {
				if got := metricsOf(t, url, i == 0); !strings.Contains(got, stats.String()) {
					t.Errorf("not all of the %d bytes of statistics are in the %d bytes of the scrape", stats.Len(), len(got))
				}
			}
		})
	}
	scrapers.Wait()
}

// TestScrapeThatPanicsLeavesNothingBehind: a panic ends only its scrape. TestMain detects goroutines that it leaves
// behind.
func TestScrapeThatPanicsLeavesNothingBehind(t *testing.T) {
	slow := fakeEnvoy(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	m := Metrics{Envoy: func() string { return slow }, Applications: []Application{{Name: "a", URL: fakeEnvoy(t, text("a 1\n"))}}}
	defect := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { panic("a defect") })
	_, url := run(t, Config{Gatherer: defect, Metrics: m})
	req, err := http.NewRequestWithContext(t.Context(), "GET", url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("the aborted response looks complete")
	}
}

func metricsOf(t *testing.T, url string, zipped bool) string {
	if !zipped {
		return call(t, "GET", url+"/metrics").body
	}
	z, err := gzip.NewReader(strings.NewReader(call(t, "GET", url+"/metrics", "Accept-Encoding", "gzip").body))
	if err != nil {
		t.Error(err)
		return ""
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}
