package status

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestApplicationIsWrittenBeforeSlowEnvoy: Envoy does not respond before the scraper has received the beginning of the
// application's metrics. Families with Envoy's names still belong to Envoy.
func TestApplicationIsWrittenBeforeSlowEnvoy(t *testing.T) {
	seen := make(chan struct{})
	m := envoyAt(fakeEnvoy(t, func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-seen:
			text("# TYPE envoy_x counter\nenvoy_x 1\n# TYPE envoy_istio_requests_total counter\nenvoy_istio_requests_total 5\n")(w, r)
		case <-r.Context().Done():
		}
	}))
	m.AllowReservedNames = true
	m.Applications = []Application{target(t, "app/metrics", text("# TYPE app_x gauge\n"+series("app_x", 0, 50_000)+
		"# TYPE envoy_x gauge\nenvoy_x 2\n# TYPE istio_requests_total counter\nistio_requests_total 6\n# TYPE app_last gauge\napp_last 3\n"))}
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: m})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(timeoutHeader, "60")
	response, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body := bufio.NewReader(response.Body)
	for line := ""; line != "app_x{n=\"0\"} 1\n"; {
		if line, err = body.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	close(seen)
	rest, err := io.ReadAll(body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n# TYPE envoy_x counter\nenvoy_x 1\n", "\n# TYPE istio_requests_total counter\nistio_requests_total 5\n",
		"\n# TYPE app_envoy_x gauge\napp_envoy_x 2\n", "\n# TYPE app_istio_requests_total counter\napp_istio_requests_total 6\n", "\napp_last 3\n",
	} {
		if !strings.Contains(string(rest), want) {
			t.Errorf("the response lacks %q: %s", want, tail(string(rest)))
		}
	}
	if strings.Contains(string(rest), "is incomplete") {
		t.Error(tail(string(rest)))
	}
}

// TestHungEnvoyLeavesTimeForRestOfApplication: Envoy hangs after the first part of the application's metrics was
// written.
func TestHungEnvoyLeavesTimeForRestOfApplication(t *testing.T) {
	m := envoyAt(fakeEnvoy(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	m.AllowReservedNames = true
	m.Applications = []Application{target(t, "app/metrics", text("# TYPE app_x gauge\napp_x 1\n# TYPE istio_x gauge\nistio_x 2\n"+
		"# TYPE app_y gauge\n"+series("app_y", 0, 20_000)+"# TYPE app_last gauge\napp_last 3\n"))}
	_, url := run(t, Config{Gatherer: agentMetrics(), Metrics: m})
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(timeoutHeader, "6")
	response, err := (&http.Transport{DisableKeepAlives: true, DisableCompression: true}).RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\napp_x 1\n", "\nistio_x 2\n", "\napp_last 3\n", "envoy is missing"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("the response lacks %q: %s", want, tail(string(body)))
		}
	}
}
