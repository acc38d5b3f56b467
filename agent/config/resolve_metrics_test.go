package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/status"
)

func TestMetricsTargetsInInjectorFormat(t *testing.T) {
	for _, c := range []struct {
		name   string
		env    []string
		want   string // expected URLs, or "!" and a part of the expected error
		warned string
	}{
		{name: "nothing"},
		{"one target", []string{`={"scrape":"true","path":"/stats","port":"8080"}`}, "http://localhost:8080/stats", ""},
		{"defaults", []string{`={"scrape":"true","path":"","port":""}`}, "http://localhost:80/metrics", ""},
		{"a number, and no slash", []string{`={"port":9102,"path":"m?x=y"}`}, "http://localhost:9102/m?x=y", ""},
		{"switched off", []string{`={"scrape":"false","port":"8080"}`}, "", ""},
		{"several", []string{`={"scrape":"true","path":"/x","port":"1","targets":[{"port":"8080","path":"/metrics"},{"port":"08443"},{"port":"8080","path":"/metrics"}]}`, "METRICS_HTTPS_PORTS=8443"},
			"http://localhost:8080/metrics https://localhost:8443/metrics", ""},
		{"elsewhere", []string{`={"port":"8080"}`, "ISTIO_META_APP_ADDRESS=10.9.8.7"}, "http://10.9.8.7:8080/metrics", ""},
		{"a field of tomorrow", []string{`={"port":"8080","colour":"blue"}`}, "http://localhost:8080/metrics", ""},
		{"the status port", []string{`={"port":"15020"}`}, "!the status port of the agent", ""},
		{"the status port in disguise", []string{`={"targets":[{"port":"8080"},{"port":"015020"}]}`}, "!the status port of the agent", ""},
		{"a reserved port", []string{`={"targets":[{"port":"15090"},{"port":"8080"}]}`}, "http://localhost:8080/metrics", "15090"},
		{"a port that the proxy was given", []string{`={"port":"19999"}`, "ENVOY_PROMETHEUS_PORT=19999"}, "", "19999"},
		{"no JSON", []string{`=8080`}, "!unexpected JSON number at byte 4; write the value as", ""},
		{"no port", []string{`={"port":"http"}`}, "!port from 1 to 65535", ""},
		{"no path", []string{`={"port":"1","path":"/a b\n"}`}, "", "a path such as /metrics"},
		{"another host", []string{`={"port":"1","path":"@169.254.169.254/x"}`}, "http://localhost:1/@169.254.169.254/x", ""},
		{"another host again", []string{`={"port":"1","path":"//169.254.169.254/x"}`}, "http://localhost:1//169.254.169.254/x", ""},
		{"too many", []string{`={"targets":[` + strings.Repeat(`{"port":"1"},`, 20) + `{}]}`}, "http://localhost:1/metrics", "only the first 16"},
		{"HTTPS ports", []string{`={"port":"1"}`, "METRICS_HTTPS_PORTS=x"}, "!write ports", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			env := append([]string{"INSTANCE_IP=10.1.2.3"}, c.env...)
			if len(c.env) > 0 {
				env[1] = scrapeVariable + env[1]
			}
			config, err := Resolve(Inputs{Env: env})
			if remedy, refused := strings.CutPrefix(c.want, "!"); refused {
				if err == nil || !strings.Contains(err.Error(), remedy) {
					t.Fatalf("err = %v, want one with %q", err, remedy)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := urls(config.Metrics.Applications); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			if warnings := fmt.Sprint(config.Warnings); !strings.Contains(warnings, c.warned) || (c.warned == "" && len(config.Warnings) > 0) {
				t.Errorf("warnings %q, want %q", warnings, c.warned)
			}
		})
	}
}

func urls(apps []status.Application) string {
	var all []string
	for _, a := range apps {
		all = append(all, a.URL)
	}
	return strings.Join(all, " ")
}

func TestRouterMergesNoApplicationMetrics(t *testing.T) {
	config, err := Resolve(Inputs{Flags: Flags{Type: "router"}, Env: []string{"INSTANCE_IP=10.1.2.3", scrapeVariable + `={"port":"8080"}`}})
	if err != nil || len(config.Metrics.Applications) != 0 || len(config.Warnings) != 1 {
		t.Errorf("%+v, %v", config, err)
	}
}

func TestMetricsSettings(t *testing.T) {
	config, err := Resolve(Inputs{Env: []string{"INSTANCE_IP=10.1.2.3", "METRICS_LOCALHOST_ACCESS_ONLY=true", "ENVOY_SECURE_METRICS_PORT=15091",
		"ENVOY_SECURE_MERGED_METRICS_PORT=15092", "PILOT_AGENT_MERGE_ENVOY_STATS=false", "METRICS_MAX_APPLICATION_BYTES=1000"}})
	if err != nil {
		t.Fatal(err)
	}
	want := Metrics{OnlyLoopback: true, SecurePort: 15091, SecureMergedPort: 15092, MaxApplicationBytes: 1000}
	if fmt.Sprint(config.Metrics) != fmt.Sprint(want) {
		t.Errorf("%+v, want %+v", config.Metrics, want)
	}
	b := config.BootstrapConfig()
	if !b.LocalMetrics || b.SecureMetricsPort != 15091 || b.SecureMergedMetricsPort != 15092 {
		t.Errorf("the bootstrap has %v %d %d", b.LocalMetrics, b.SecureMetricsPort, b.SecureMergedMetricsPort)
	}
	for _, bad := range []string{"ENVOY_SECURE_METRICS_PORT=15090", "ENVOY_SECURE_METRICS_PORT=70000", "METRICS_MAX_APPLICATION_BYTES=0"} {
		name, _, _ := strings.Cut(bad, "=")
		if _, err := Resolve(Inputs{Env: []string{"INSTANCE_IP=10.1.2.3", bad}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func FuzzScrapeTargets(f *testing.F) {
	f.Add(`{"scrape":"true","path":"/stats","port":"8080"}`)
	f.Add(`{"targets":[{"port":8080},{"port":"1","path":"x?y#z"}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		config, err := Resolve(Inputs{Env: []string{"INSTANCE_IP=10.1.2.3", scrapeVariable + "=" + text}})
		if err != nil {
			return
		}
		for _, a := range config.Metrics.Applications {
			if !strings.HasPrefix(a.URL, "http://localhost:") || strings.Contains(a.URL, ":15020/") {
				t.Errorf("the target of %q has the URL %q", text, a.URL)
			}
		}
	})
}
