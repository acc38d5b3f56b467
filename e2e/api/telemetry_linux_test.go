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

// TestTrafficIsToldOf: what Telemetry documents say shows at the agents, and in the logs.
func TestTrafficIsToldOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "answer.wasm")
	if err := os.WriteFile(path, answeringModule(), 0o644); err != nil {
		t.Fatal(err)
	}
	runRows(t, []row{
		{name: "standard metrics at the agents", ports: []string{"http"}, only: []string{testenv.EnvoyVersion}, check: func(w *world, host string) error {
			for _, from := range []string{"client", "other"} {
				if _, err := w.expect(http.StatusOK, from, "http://guarded.default/"); err != nil {
					return err
				}
			}
			const service = `destination_service="guarded.default.svc.cluster.local"`
			if err := w.scraped("client", "istio_requests_total", `reporter="source"`, service, `destination_workload="guarded"`, `source_workload="client"`, `response_code="200"`); err != nil {
				return err
			}
			if err := w.scraped("guarded", "istio_requests_total", `reporter="destination"`, service, `source_workload="other"`, `source_workload_namespace="other"`, `connection_security_policy="mutual_tls"`, `/sa/other"`); err != nil {
				return err
			}
			return w.scraped("guarded", "istio_request_duration_milliseconds_count", `reporter="destination"`, `source_workload="client"`)
		}},
		{name: "access logs by expression", ports: []string{"http"}, alone: []string{"guarded"}, docs: `
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  accessLogging:
  - match: {mode: SERVER}
    providers: [{name: envoy}]
    filter: {expression: "request.url_path.startsWith('/logged')"}
`, check: func(w *world, _ string) error {
			for _, path := range []string{"/unlogged", "/logged"} {
				if _, err := w.expect(http.StatusOK, "client", "http://guarded.default"+path); err != nil {
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
		{name: "wasm plugin", ports: []string{"http"}, alone: []string{"guarded"}, docs: `
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: $HOST}
spec:
  selector: {matchLabels: {app: guarded}}
  url: file://` + path + `
  phase: AUTHN
  match: [{mode: SERVER, ports: [{number: 8080}]}]
`, check: func(w *world, _ string) error {
			got, err := w.expect(http.StatusTeapot, "client", "http://guarded.default/")
			if err == nil && got.Body != "wasm" {
				err = fmt.Errorf("answered %q", got.Body)
			}
			return err
		}},
	})
}

// scraped says when a metric with these labels is not what an agent tells whoever scrapes it.
func (w *world) scraped(at, metric string, labels ...string) error {
	got, err := w.get(at, "http://127.0.0.1:15020/stats/prometheus")
	if err != nil {
		return err
	}
	lines := regexp.MustCompile(`(?m)^`+metric+`\{.*$`).FindAllString(got.Body, -1)
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
