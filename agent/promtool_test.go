package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// contractNames are the agent's metrics that promtool remarks on: counters by the names that Istio's agent gave them.
var contractNames = map[string]bool{
	"istio_agent_istiod_connection_failures": true, "istio_agent_istiod_connection_terminations": true,
	"istio_agent_envoy_connection_terminations": true, "istio_agent_num_outgoing_requests": true,
	"istio_agent_num_failed_outgoing_requests": true, "istio_agent_num_outgoing_retries": true,
	"istio_agent_outgoing_latency": true, "istio_agent_xds_proxy_requests": true, "istio_agent_xds_proxy_responses": true,
	"istio_agent_wasm_cache_lookup_count": true, "istio_agent_wasm_remote_fetch_count": true,
	"istio_agent_wasm_config_conversion_count": true,
}

// contractRemarks are the remarks on them.
var contractRemarks = map[string]bool{
	`counter metrics should have "_total" suffix`:                           true,
	`non-histogram and non-summary metrics should not have "_count" suffix`: true,
}

// remarksOn gives promtool's remarks on an exposition. What it cannot read fails the test.
func remarksOn(t *testing.T, of, exposition string) map[string]bool {
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
	output, _ := cmd.CombinedOutput() // the exit code is 3 when there are remarks
	if code := cmd.ProcessState.ExitCode(); code != 0 && code != 3 {
		t.Fatalf("promtool on %s: exit code %d: %.2000s", of, code, output)
	}
	remarks := make(map[string]bool)
	for line := range strings.Lines(string(output)) {
		remarks[strings.TrimSpace(line)] = true
	}
	return remarks
}

func TestPromtoolReadsTheJoinedMetricsAndRemarksOnNoneThatItDoesNotRemarkOnAlone(t *testing.T) {
	t.Parallel()
	remarksOn(t, "nothing", "") // skips before anything is started
	const open = "application/openmetrics-text; version=1.0.0"
	first := listening(t, false, "text/plain; version=0.0.4", "# HELP badlyNamed It.\n# TYPE badlyNamed counter\nbadlyNamed 1\n# TYPE envoy_server_live gauge\nenvoy_server_live 5\nno_type{a=\"\\\"\\\\\\n\"} 1e5 1700000000000\n"+
		"# HELP t_seconds Time.\n# TYPE t_seconds histogram\nt_seconds_bucket{le=\"1\"} 1\nt_seconds_bucket{le=\"+Inf\"} 2\nt_seconds_sum 1.5\nt_seconds_count 2\nnot a line\n")
	second := listening(t, false, open, "# HELP badlyNamed It.\n# TYPE badlyNamed counter\nbadlyNamed_total 1\n# HELP i Version.\n# TYPE i info\ni_info{v=\"1\"} 1\n# HELP s State.\n# TYPE s stateset\ns{s=\"a\"} 1\n# EOF\n")
	s := newSetup(t, "127.150.1.1")
	s.env = append(s.env, fmt.Sprintf(`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"","port":"","targets":[{"port":%q,"path":"/metrics"},{"port":%q,"path":"/metrics"}]}`, first, second),
		fmt.Sprintf(`PROXY_CONFIG={discoveryAddress: "%s", concurrency: 1, proxyStatsMatcher: {inclusionRegexps: [".*"]}}`, s.cp.address))
	s.cp.start(t)
	r := s.start(t)
	r.waitReady()
	alone := make(map[string]bool)
	// Envoy's families may come while they are looked at: those of before and after count.
	get := func(address string) string {
		t.Helper()
		code, body, err := r.http("GET", address)
		if err != nil || code != 200 {
			t.Fatalf("%s: %d %v", address, code, err)
		}
		return body
	}
	envoyOnly := func() {
		for remark := range remarksOn(t, "Envoy's metrics", get("15000/stats/prometheus")) {
			alone[remark] = true
		}
	}
	envoyOnly()
	joined := get("15020/stats/prometheus")
	envoyOnly()
	for _, remark := range []string{ // of the applications' own metrics, and of a name that is Envoy's
		`badlyNamed counter metrics should have "_total" suffix`, "badlyNamed metric names should be written in 'snake_case' not 'camelCase'",
		"badlyNamed_total metric names should be written in 'snake_case' not 'camelCase'", "no_type no help text", "app_envoy_server_live no help text",
	} {
		alone[remark] = true
	}
	for remark := range remarksOn(t, "the joined metrics", joined) {
		name, text, _ := strings.Cut(remark, " ")
		if !alone[remark] && (!contractNames[name] || !contractRemarks[text]) {
			t.Errorf("promtool: %s", remark)
		}
	}
	for _, want := range []string{"\nt_seconds_bucket{le=\"+Inf\"} 2\n", "\nbadlyNamed 1\n", "\nenvoy_server_live 1\n", "\ni_info{scrape_target=\"" + second} {
		if !strings.Contains(joined, want) {
			t.Errorf("the joined metrics lack %q", want)
		}
	}
}
