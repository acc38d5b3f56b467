package bootstrap

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// Istio's agent and Envoy start with each of these values, so this agent must, too. A warning names the value.
func TestInvalidInputThatIstioToleratesIsAWarning(t *testing.T) {
	annotate := func(name, value string) func(*Config) {
		return func(c *Config) { c.Annotations = map[string]string{name: value} }
	}
	override := func(text string) func(*Config) {
		return func(c *Config) { c.Override, c.OverrideFile = []byte(text), "o.yaml" }
	}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"flush interval":           {annotate(annotationFlush, "often"), []string{annotationFlush, `"often"`, "10s"}},
		"long flush interval":      {annotate(annotationFlush, "5m"), []string{annotationFlush, "5m0s", "less than 5m"}},
		"eviction interval":        {annotate(annotationEviction, "-1s"), []string{annotationEviction, `"-1s"`}},
		"eviction between flushes": {annotate(annotationEviction, "12s"), []string{annotationEviction, "12s", "multiple of the flush interval 5s"}},
		"buckets":                  {annotate(annotationBuckets, "[1,2]"), []string{annotationBuckets, "[1,2]", "prefix"}},
		"compression":              {annotate(annotationCompress, "gzip,lzma"), []string{annotationCompress, `"lzma"`, "brotli, zstd or gzip"}},
		"connection limit": {
			func(c *Config) { c.Metadata = map[string]any{maxConnectionsMetadata: "many"} },
			[]string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS", `"many"`},
		},
		"provider without port": {
			func(c *Config) {
				c.TracingProvider = &meshv1.MeshConfig_ExtensionProvider{Name: "zip", Provider: &meshv1.MeshConfig_ExtensionProvider_Zipkin{
					Zipkin: &meshv1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: "zipkin.obs"}}}
			},
			[]string{"extensionProviders: zip", "zipkin.obs:0", "host:port"},
		},
		"override, unknown field":       {override(`{static_resources: {clusters: [{name: x, type: STATIC, nmae: x}]}}`), []string{"o.yaml: static_resources.clusters[0].nmae", "did you mean name?"}},
		"override, unknown at the top":  {override(`{foo_bar_baz: 1}`), []string{"o.yaml: foo_bar_baz", "unknown field", "envoy.config.bootstrap.v3.Bootstrap"}},
		"override, unknown when packed": {override(`{stats_sinks: [{name: x, typed_config: {"@type": type.googleapis.com/envoy.config.metrics.v3.StatsdSink, prefixx: y, tcp_cluster_name: sds-grpc}}]}`), []string{"stats_sinks[0].typed_config.prefixx", "did you mean prefix?"}},
		"override, not YAML":            {override("a: ["), []string{"o.yaml", "neither JSON nor YAML", "the override has no effect"}},
		"override, two documents":       {override("{}\n---\n{}"), []string{"o.yaml", "more than one document", "the override has no effect"}},
		"override, alias bomb":          {override(aliasBomb()), []string{"o.yaml", "the override has no effect"}},
		"override, keys":                {override("{1: 2}"), []string{"o.yaml", "the override has no effect"}},
		"custom bootstrap, unknown field": {
			func(c *Config) { c.Custom, c.CustomFile = []byte(`{"static_resources": {"listener": []}}`), "c.json" },
			[]string{"c.json: static_resources.listener", "did you mean listeners?"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := sidecar()
			tc.change(&c)
			warnings := Warnings(c)
			if len(warnings) != 1 {
				t.Fatalf("warnings %q, want one", warnings)
			}
			for _, want := range tc.want {
				if !strings.Contains(warnings[0], want) {
					t.Errorf("the warning does not contain %q: %s", want, warnings[0])
				}
			}
			text, err := Encode(c)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "envoy-rev.json")
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			validate(t, testenv.Envoy(t), file)
		})
	}
}

func TestReadinessPortAcceptsTheProxyProtocolOnRequest(t *testing.T) {
	for _, proxied := range []bool{false, true} {
		c := sidecar()
		c.ReadinessProxied = proxied
		b, err := Build(c)
		if err != nil {
			t.Fatal(err)
		}
		filters := 0
		for _, l := range b.GetStaticResources().GetListeners() {
			filters += len(l.GetListenerFilters())
		}
		if (filters == 1) != proxied {
			t.Errorf("ReadinessProxied %v: %d listener filters", proxied, filters)
		}
	}
}
