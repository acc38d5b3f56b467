package api

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// TestTelemetryDocuments verifies their effect in the agents' metrics and in the logs.
func TestTelemetryDocuments(t *testing.T) {
	path := filepath.Join(t.TempDir(), "answer.wasm")
	if err := os.WriteFile(path, answeringModule(), 0o644); err != nil {
		t.Fatal(err)
	}
	runRows(t, []row{
		{name: "standard metrics at the agents", ports: []string{"http"}, versions: []string{testenv.EnvoyVersion}, check: func(w *testMesh, host string) error {
			for _, from := range []string{"client", "other"} {
				if _, err := w.expectStatus(http.StatusOK, from, "http://guarded.default/"); err != nil {
					return err
				}
			}
			const service = `destination_service="guarded.default.svc.cluster.local"`
			if err := w.checkMetric("client", "istio_requests_total", `reporter="source"`, service, `destination_workload="guarded"`, `source_workload="client"`, `response_code="200"`); err != nil {
				return err
			}
			if err := w.checkMetric("guarded", "istio_requests_total", `reporter="destination"`, service, `source_workload="other"`, `source_workload_namespace="other"`, `connection_security_policy="mutual_tls"`, `/sa/other"`); err != nil {
				return err
			}
			return w.checkMetric("guarded", "istio_request_duration_milliseconds_count", `reporter="destination"`, `source_workload="client"`)
		}},
		{name: "access logs by expression", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  accessLogging:
  - match: {mode: SERVER}
    providers: [{name: envoy}]
    filter: {expression: "request.url_path.startsWith('/logged')"}
`, check: func(w *testMesh, _ string) error {
			for _, path := range []string{"/unlogged", "/logged"} {
				if _, err := w.expectStatus(http.StatusOK, "client", "http://guarded.default"+path); err != nil {
					return err
				}
			}
			log, err := os.ReadFile(filepath.Join(w.dir, "log"))
			switch {
			case err != nil:
				return err
			case !strings.Contains(string(log), `"GET /logged HTTP/`):
				return fmt.Errorf("the request is not in the log")
			case strings.Contains(string(log), `"GET /unlogged HTTP/`):
				return fmt.Errorf("a request that the filter leaves out is in the log")
			}
			return nil
		}},
		{name: "wasm plugin", ports: []string{"http"}, exclusive: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: file://` + path + `
  phase: AUTHN
  match: [{mode: SERVER, ports: [{number: 8080}]}]
`, check: func(w *testMesh, _ string) error {
			got, err := w.expectStatus(http.StatusTeapot, "client", "http://guarded.default/")
			if err == nil && got.Body != "wasm" {
				err = fmt.Errorf("answered %q", got.Body)
			}
			return err
		}},
	})
}

// checkMetric fails unless a scrape of the agent contains a metric with these labels.
func (w *testMesh) checkMetric(at, metric string, labels ...string) error {
	// The agent's port has the metric under Istio's name, and Envoy's port under Envoy's name.
	for page, name := range map[string]string{"15020/stats/prometheus": metric, "15090/stats/prometheus": "envoy_" + metric} {
		got, err := w.get(at, "http://127.0.0.1:"+page)
		if err != nil {
			return err
		}
		if err := findSeries(got.Body, name, labels); err != nil {
			return fmt.Errorf("port %s: %w", page, err)
		}
	}
	return nil
}

func findSeries(text, metric string, labels []string) error {
	lines := regexp.MustCompile(`(?m)^`+metric+`\{.*$`).FindAllString(text, -1)
	for _, line := range lines {
		found := true
		for _, l := range labels {
			found = found && strings.Contains(line, l)
		}
		if found && !strings.HasSuffix(line, " 0") {
			return nil
		}
	}
	return fmt.Errorf("%s with %s is not among\n%s", metric, labels, strings.Join(lines, "\n"))
}
