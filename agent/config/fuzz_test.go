package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
)

// Resolve must not panic on any input of a pod's author, a mesh operator or an attacker. Either it returns an error, or the
// bootstrap is built or rejected.
func FuzzConfigurationIsResolvedOrRefused(f *testing.F) {
	f.Add("=x\nPOD_NAME=p\nPROXY_CONFIG={concurrency: 2}", "defaultConfig:\n  statusPort: 16020\n", "proxy.istio.io/config=\"tracing: {zipkin: {address: \\\"z:1\\\"}}\"\n", "{}", "sidecar")
	f.Add("ISTIO_METAJSON_X={\"a\": {\"b\": [1, null]}}\nISTIO_META_DNS_CAPTURE=true\nISTIO_KUBE_APP_PROBERS={\"/app-health/a/livez\":{\"httpGet\":{\"port\":80}}}", "trustDomain: x\n",
		"sidecar.istio.io/statsHistogramBuckets=\"{\\\"a\\\": [1]}\"\n", "- {op: remove, path: /admin}\n", "router")
	f.Add("ISTIO_PROMETHEUS_ANNOTATIONS={\"scrape\":\"true\",\"port\":\"8080\"}\nISTIO_CPU_LIMIT=1e300m\nPROXY_MEMORY_LIMIT=1e19\nHOST_IP=::1", "extensionProviders: [{name: a}]\ndefaultProviders: {tracing: [a]}\n",
		"status.sidecar.istio.io/port=\"99999\"\n", "admin: {address: null}\n", "waypoint")
	f.Add("TERMINATION_GRACE_PERIOD=9999999999h\nMINIMUM_DRAIN_DURATION=2540400h\nXDS_HEADER_a=b\nSECRET_TTL=-1ns", "defaultConfig: {terminationDrainDuration: 315576000000s}\n", "=\"\"\n", "&a [*a]", "")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, environment, mesh, annotations, override, kind string) {
		t.Chdir(dir)
		for name, text := range map[string]string{DefaultMeshFile: mesh, annotationsFile: annotations, "override": override} {
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Resolve(Inputs{
			Env:        append(strings.Split(environment, "\n"), "INSTANCE_IP=10.1.1.1", "ISTIO_BOOTSTRAP_OVERRIDE=override"),
			Flags:      Flags{Type: kind},
			WorkingDir: dir,
		})
		if err != nil {
			return
		}
		for _, s := range c.Settings {
			if s.Source == "" {
				t.Errorf("setting %q has no source", s.Name)
			}
		}
		from := c.BootstrapConfig()
		_, _ = bootstrap.Encode(from)
		if _, err := bootstrap.GRPC(from); err != nil {
			t.Errorf("building the bootstrap for gRPC clients from an accepted configuration: %v", err)
		}
	})
}

func FuzzQuantitiesAreReadOrRefused(f *testing.F) {
	for _, seed := range []string{"1", "256Mi", "1.5Gi", "500m", "1e400", "-1", "NaN", "Inf", "0x10", "", "Mi", "1KiMi", "9223372036854775807"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseCPUs(text); err == nil && n < 0 {
			t.Errorf("parseCPUs(%q) returns %d", text, n)
		}
		if n, err := parseBytes(text); err == nil && n > 1<<63 {
			t.Errorf("parseBytes(%q) returns %d", text, n)
		}
	})
}
