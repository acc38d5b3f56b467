package status

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/prometheus/client_golang/prometheus"
)

// reachedAfter is a transport that sends a request after a delay.
type reachedAfter time.Duration

func (d reachedAfter) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(d))
	if trace := httptrace.ContextClientTrace(r.Context()); trace != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	time.Sleep(time.Second) // Envoy builds its statistics
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader("envoy_x 1\n"))}, nil
}

func TestEnvoyIsRequestedFirst(t *testing.T) {
	for _, c := range []struct {
		name             string
		reached, gathers time.Duration
	}{
		{"Envoy is reached soon", readinessWait / 2, readinessWait / 2},
		{"Envoy is not reached soon", 10 * readinessWait, readinessWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				var gathered time.Duration
				s, err := New(Config{Address: "127.41.2.1:0", Metrics: envoyAt("http://envoy/stats/prometheus"),
					Gatherer: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { gathered = time.Since(began); return nil, nil })})
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				s.scraper.Transport = reachedAfter(c.reached)
				w := httptest.NewRecorder()
				s.serveMetrics(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				if gathered != c.gathers || !strings.Contains(w.Body.String(), "\nenvoy_x 1\n") {
					t.Errorf("gathered after %s, not %s: %s", gathered, c.gathers, w.Body)
				}
			})
		})
	}
}
