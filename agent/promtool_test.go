package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

const (
	noTotal    = `counter metrics should have "_total" suffix`
	noCount    = `non-histogram and non-summary metrics should not have "_count" suffix`
	shortUnits = "metric names should not contain abbreviated units"
)

// istioMetricNames are the agent's metrics that promtool complains about: counters with the names of Istio's agent.
var istioMetricNames = map[string]bool{
	"istio_agent_istiod_connection_failures": true, "istio_agent_istiod_connection_terminations": true,
	"istio_agent_envoy_connection_terminations": true, "istio_agent_num_outgoing_requests": true,
	"istio_agent_num_failed_outgoing_requests": true, "istio_agent_num_outgoing_retries": true,
	"istio_agent_outgoing_latency": true, "istio_agent_xds_proxy_requests": true, "istio_agent_xds_proxy_responses": true,
	"istio_agent_wasm_cache_lookup_count": true, "istio_agent_wasm_remote_fetch_count": true,
	"istio_agent_wasm_config_conversion_count": true,
}

// isIstioRemark reports whether a remark is about such a name.
func isIstioRemark(name, remark string) bool {
	return istioMetricNames[name] && (remark == noTotal || remark == noCount && strings.HasSuffix(name, "_count"))
}

// envoyRemarkNames are the names of Envoy's metrics that promtool complains about, in addition to its counters without
// _total.
var envoyRemarkNames = map[string]string{
	"envoy_cluster_default_total_match_count":                     noCount,
	"envoy_envoy_overload_actions_reset_high_memory_stream_count": noCount,
	"envoy_cluster_membership_total":                              `non-counter metrics should not have "_total" suffix`,
	"envoy_server_days_until_first_cert_expiring":                 `use base unit "seconds" instead of "days"`,
	"envoy_cluster_manager_cds_config_reload_time_ms":             shortUnits,
	"envoy_listener_manager_lds_config_reload_time_ms":            shortUnits,
	"envoy_cluster_upstream_cx_connect_ms":                        shortUnits,
	"envoy_cluster_upstream_cx_length_ms":                         shortUnits,
	"envoy_http_admin_downstream_cx_length_ms":                    shortUnits,
	"envoy_http_agent_downstream_cx_length_ms":                    shortUnits,
	"envoy_http_stats_downstream_cx_length_ms":                    shortUnits,
	"envoy_http_test_downstream_cx_length_ms":                     shortUnits,
	"envoy_listener_admin_downstream_cx_length_ms":                shortUnits,
	"envoy_listener_downstream_cx_length_ms":                      shortUnits,
	"envoy_server_initialization_time_ms":                         shortUnits,
	// These exist after Envoy's first flush of statistics.
	"envoy_server_stats_overflow_counter":   "metric name should not include type 'counter'",
	"envoy_server_stats_overflow_histogram": "metric name should not include type 'histogram'",
}

// isEnvoyRemark reports whether a remark is about a name of Envoy's.
func isEnvoyRemark(name, remark string) bool {
	return strings.HasPrefix(name, "envoy_") && remark == noTotal || remark != "" && envoyRemarkNames[name] == remark
}

// promtoolRemarks returns promtool's remarks on an exposition. A parse error fails the test.
func promtoolRemarks(t *testing.T, of, exposition string) map[string]bool {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	promtool := filepath.Join(cache, "pilotfish", "promtool", "promtool")
	if _, err := os.Stat(promtool); err != nil {
		t.Skip("promtool is not here: `make promtool` puts it there")
	}
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader(exposition)
	output, _ := cmd.CombinedOutput() // the exit code is 3 if there are remarks
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 3 {
		t.Fatalf("promtool on %s: exit code %d: %.2000s", of, code, output)
	}
	remarks := make(map[string]bool)
	for line := range strings.Lines(string(output)) {
		if line = strings.TrimSpace(line); line != "" {
			remarks[line] = true
		}
	}
	return remarks
}

func TestPromtoolAcceptsMergedMetrics(t *testing.T) {
	t.Parallel()
	promtoolRemarks(t, "nothing", "") // skips the test before anything is started
	for n, version := range testenv.EnvoyVersions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			s := newSetup(t, fmt.Sprintf("127.150.1.%d", n+1))
			s.env = append(s.env, "ENVOY_PATH="+testenv.EnvoyOf(t, version))
			s.checkPromtoolRemarks(t)
		})
	}
}

func (s *agentSetup) checkPromtoolRemarks(t *testing.T) {
	const open = "application/openmetrics-text; version=1.0.0"
	first := startMetricsServer(t, false, "text/plain; version=0.0.4", "# HELP badlyNamed It.\n# TYPE badlyNamed counter\nbadlyNamed 1\n# TYPE envoy_server_live gauge\nenvoy_server_live 5\nno_type{a=\"\\\"\\\\\\n\"} 1e5 1700000000000\n"+
		"# HELP t_seconds Time.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 1\nt_seconds_bucket{le=\"+Inf\"} 2\nt_seconds_sum 1.5\nt_seconds_count 2\nnot a line\n"+
		"# HELP badlyNamed It.\n# TYPE badlyNamed counter\nbadlyNamed 2\nbadlyNamed{of=\"another registry\"} 3\n")
	second := startMetricsServer(t, false, open, "# HELP badlyNamed It.\n# TYPE badlyNamed counter\nbadlyNamed_total 1\n# HELP i Version.\n# TYPE i info\ni_info{v=\"1\"} 1\n# HELP s State.\n# TYPE s stateset\ns{s=\"a\"} 1\n# EOF\n")
	s.env = append(s.env, "METRICS_ALLOW_RESERVED_NAMES=true", fmt.Sprintf(`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"","port":"","targets":[{"port":%q,"path":"/metrics"},{"port":%q,"path":"/metrics"}]}`, first, second),
		fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, proxyStatsMatcher: {inclusionRegexps: [".*"]}}`, s.cp.address))
	r := s.startReady(t)
	code, joined, err := r.http("GET", "15020/stats/prometheus")
	if err != nil || code != 200 {
		t.Fatal(code, err)
	}
	ofApplications := map[string]bool{
		`badlyNamed counter metrics should have "_total" suffix`: true, "badlyNamed metric names should be written in 'snake_case' not 'camelCase'": true,
		"badlyNamed_total metric names should be written in 'snake_case' not 'camelCase'": true, "no_type no help text": true, "app_envoy_server_live no help text": true,
	}
	remarks := promtoolRemarks(t, "the joined metrics", joined)
	for remark := range remarks {
		if name, text, _ := strings.Cut(remark, " "); !ofApplications[remark] && !isEnvoyRemark(name, text) && !isIstioRemark(name, text) {
			t.Errorf("promtool: %s", remark)
		}
	}
	for remark := range ofApplications {
		if !remarks[remark] {
			t.Errorf("promtool does not say %s: what does it read?", remark)
		}
	}
	for _, want := range []string{"\nt_seconds_bucket{le=\"+Inf\"} 2\n", "\nbadlyNamed 1\n", "\nbadlyNamed{of=\"another registry\"} 3\n", "\nenvoy_server_live 1\n", "\ni_info{scrape_target=\"" + second} {
		if !strings.Contains(joined, want) {
			t.Errorf("the joined metrics lack %q", want)
		}
	}
}
