package bootstrap

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestBootstrapIsTheGoldenOne(t *testing.T) {
	for name, config := range golden {
		t.Run(name, func(t *testing.T) {
			got := build(t, config())
			file := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v (write it with -update)", err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("the bootstrap differs from %s (accept it with -update):\n%s", file, diff)
			}
		})
	}
}

func build(t *testing.T, c Config) []byte {
	t.Helper()
	b, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := validateAll(b); err != nil {
		t.Errorf("Envoy's validation rules reject the bootstrap: %v", err)
	}
	out, err := Render(c)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestEncodedFileEqualsTheBootstrap(t *testing.T) {
	for name, config := range golden {
		t.Run(name, func(t *testing.T) {
			if config().isCustomized() {
				return // writes the file that the other tests read
			}
			want, err := Build(config())
			if err != nil {
				t.Fatal(err)
			}
			text, err := Encode(config())
			if err != nil {
				t.Fatal(err)
			}
			got := &bootstrapv3.Bootstrap{}
			if err := protojson.Unmarshal(text, got); err != nil {
				t.Fatalf("the file is not protobuf JSON: %v\n%s", err, text)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnvoyAcceptsEveryGoldenBootstrap(t *testing.T) {
	for _, version := range testenv.EnvoyVersions() {
		envoy := testenv.EnvoyOf(t, version)
		for name := range golden {
			t.Run(version+"/"+name, func(t *testing.T) {
				c := golden[name]()
				c.Envoy = numbersOf(t, version)
				validate(t, envoy, encoded(t, c))
				if version == testenv.EnvoyVersion { // the same configuration as Render prints it
					validate(t, envoy, filepath.Join("testdata", name+".json"))
				}
			})
		}
	}
}

func numbersOf(t *testing.T, version string) (n [2]int) {
	t.Helper()
	if _, err := fmt.Sscanf(version, "%d.%d.", &n[0], &n[1]); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEnvoyGetsTheRuntimeFlagsThatItKnows(t *testing.T) {
	for version, knows := range map[string]bool{"1.36.4": false, "1.37.0": false, "1.38.0": true, "1.40.0": true, "2.0.0": true} {
		c := golden["sidecar"]()
		c.Envoy = numbersOf(t, version)
		flags := defaultRuntime(c)
		if _, has := flags[coalesceFlag]; has != knows {
			t.Errorf("Envoy %s: the bootstrap contains %s: %v, want %v", version, coalesceFlag, has, knows)
		}
	}
}

// The agent's heap monitor counts freed memory that Envoy has not returned, as the kernel does.
func TestHeapMonitorCountsFreedMemoryIfMemoryIsLimited(t *testing.T) {
	c := golden["sidecar"]()
	for _, limit := range []uint64{0, 1 << 30} {
		c.MemoryLimit = limit
		if _, has := defaultRuntime(c)[allocatedFlag]; has != (limit == 0) {
			t.Errorf("with a limit of %d bytes, the flag is set: %v", limit, has)
		}
	}
}

func encoded(t *testing.T, c Config) string {
	t.Helper()
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy-rev.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// validate runs Envoy in validation mode on a bootstrap. A warning or a bug report in its log is a failure too.
func validate(t *testing.T, envoy, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "--allow-unknown-static-fields",
		"--concurrency", "1", "-l", "warning", "--skip-deprecated-logs", "-c", file)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s rejects %s: %v\n%s", envoy, file, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "[warning]") || strings.Contains(line, "envoy bug") {
			t.Errorf("Envoy logs a problem of %s: %s", file, line)
		}
	}
}

func TestTheSameConfigurationGivesTheSameBytes(t *testing.T) {
	first := build(t, golden["settings"]())
	for range 20 {
		if again := build(t, golden["settings"]()); !bytes.Equal(first, again) {
			t.Fatalf("two bootstraps of one configuration differ:\n%s", cmp.Diff(string(first), string(again)))
		}
	}
}

func TestBadInputIsRefusedWithItsNameAndRemedy(t *testing.T) {
	cases := map[string]struct {
		change func(*Config)
		want   []string
	}{
		"no address":   {func(c *Config) { c.IPs = nil }, []string{"INSTANCE_IP"}},
		"unknown type": {func(c *Config) { c.Type = "ztunnel" }, []string{`"ztunnel"`, `"sidecar"`}},
		"statsd name": {
			func(c *Config) { c.ProxyConfig.StatsdUdpAddress = "statsd:9125" },
			[]string{"statsdUdpAddress", "statsd:9125"},
		},
		"collector": {
			func(c *Config) {
				c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: "zipkin"}}}
			},
			[]string{"tracing.zipkin.address", `"zipkin"`, "host:port"},
		},
		"collector on an unknown node": {
			func(c *Config) {
				c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Datadog_{Datadog: &meshv1.Tracing_Datadog{Address: "$(HOST_IP):1"}}}
			},
			[]string{"tracing.datadog.address", "HOST_IP"},
		},
		"metadata of a collector": {
			func(c *Config) {
				c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Lightstep_{Lightstep: &meshv1.Tracing_Lightstep{Address: "a:1", AccessToken: "5%"}}}
			},
			[]string{"tracing.lightstep.address", lightstepTokenHeader, "%"},
		},
		"certificate of a client": {
			func(c *Config) {
				c.ProxyConfig.EnvoyMetricsService = &meshv1.RemoteService{Address: "a:1", TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_MUTUAL}}
			},
			[]string{"envoyMetricsService.address", "MUTUAL", "clientCertificate"},
		},
		"secret of Kubernetes": {
			func(c *Config) {
				c.ProxyConfig.EnvoyAccessLogService = &meshv1.RemoteService{Address: "a:1", TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CredentialName: "mine"}}
			},
			[]string{"envoyAccessLogService.address", `"mine"`, "files"},
		},
		"load reports": {
			func(c *Config) { c.Metadata = map[string]any{loadStatsMetadata: "{"} },
			[]string{"ISTIO_META_LOAD_STATS_CONFIG_JSON", `"{"`, "api_type"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := sidecar()
			tc.change(&c)
			_, err := Build(c)
			if err == nil {
				t.Fatal("it was accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not contain %q: %v", want, err)
				}
			}
		})
	}
}

func TestNodeClusterNamesTheWorkload(t *testing.T) {
	named := func(n string) *meshv1.ProxyConfig {
		return &meshv1.ProxyConfig{ClusterName: &meshv1.ProxyConfig_ServiceCluster{ServiceCluster: n}}
	}
	canonical := &meshv1.ProxyConfig{ClusterName: &meshv1.ProxyConfig_TracingServiceName_{
		TracingServiceName: meshv1.ProxyConfig_CANONICAL_NAME_ONLY,
	}}
	cases := map[string]struct {
		config *meshv1.ProxyConfig
		labels map[string]string
		meta   map[string]any
		want   string
	}{
		"explicit name":      {named("shop"), map[string]string{"app": "x"}, nil, "shop"},
		"default name":       {named("istio-proxy"), map[string]string{"app": "x"}, nil, "x.default"},
		"workload":           {&meshv1.ProxyConfig{}, nil, map[string]any{"WORKLOAD_NAME": "w"}, "w.default"},
		"nothing":            {&meshv1.ProxyConfig{}, nil, nil, "istio-proxy.default"},
		"canonical name":     {canonical, map[string]string{"service.istio.io/canonical-name": "c", "app": "x"}, nil, "c"},
		"canonical fallback": {canonical, nil, nil, "istio-proxy.default"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := sidecar()
			c.ProxyConfig, c.Labels, c.Metadata = tc.config, tc.labels, tc.meta
			node, err := Node(c)
			if err != nil {
				t.Fatal(err)
			}
			if node.GetCluster() != tc.want {
				t.Errorf("cluster %q, want %q", node.GetCluster(), tc.want)
			}
		})
	}
}

func TestTracersThatEnvoyLacksAreWarnedAbout(t *testing.T) {
	c := sidecar()
	if w := Warnings(c); w != nil {
		t.Errorf("a plain sidecar is warned about: %v", w)
	}
	c.TracingProvider = golden["tracing-opentelemetry"]().TracingProvider
	if w := Warnings(c); w != nil {
		t.Errorf("a tracer that works is warned about: %v", w)
	}
	c.TracingProvider.GetOpentelemetry().GetGrpc().InitialMetadata[0].HeaderValue =
		&meshv1.MeshConfig_ExtensionProvider_HttpHeader_EnvName{EnvName: "GONE"}
	if w := Warnings(c); len(w) != 1 || !strings.Contains(w[0], "GONE") {
		t.Errorf("a header without value: %v", w)
	}
	c.TracingProvider = &meshv1.MeshConfig_ExtensionProvider{Name: "sw", Provider: &meshv1.MeshConfig_ExtensionProvider_Skywalking{}}
	if w := Warnings(c); len(w) != 1 || !strings.Contains(w[0], "sw") {
		t.Errorf("an unsupported provider: %v", w)
	}
	c.ProxyConfig.Tracing = &meshv1.Tracing{Tracer: &meshv1.Tracing_Stackdriver_{}}
	if w := Warnings(c); len(w) != 1 || !strings.Contains(w[0], "stackdriver") || !strings.Contains(w[0], "zipkin") {
		t.Errorf("stackdriver: %v", w)
	}
}

func TestTheHeapLeavesRoomForTheRestOfTheContainer(t *testing.T) {
	const MiB = 1 << 20
	for memory, want := range map[uint64]uint64{
		1: 1, 8 * MiB: 4 * MiB, 40 * MiB: 20 * MiB, 64 * MiB: 40 * MiB, 128 * MiB: 104 * MiB, 1000 * MiB: 900 * MiB,
	} {
		if got := heapLimit(memory); got != want {
			t.Errorf("with a memory limit of %d bytes, the heap limit is %d, want %d", memory, got, want)
		}
	}
}

func TestConnectionLimitIsThatOfTheMostSpecificSetting(t *testing.T) {
	limit := func(settings, metadata, runtime bool) int64 {
		c := sidecar()
		c.Metadata, c.ProxyConfig.RuntimeValues = map[string]any{}, map[string]string{}
		if settings {
			c.ProxyConfig.ConnectionSettings = &meshv1.ProxyConfig_ConnectionSettings{GlobalDownstreamConnectionLimit: wrapperspb.Int32(1)}
		}
		if metadata {
			c.Metadata[maxConnectionsMetadata] = "2"
		}
		if runtime {
			c.ProxyConfig.RuntimeValues[maxConnectionsRuntime] = "3"
		}
		n, warnings := maxConnections(c)
		if len(warnings) > 0 {
			t.Error(warnings)
		}
		return n
	}
	for want, got := range map[int64]int64{
		1: limit(true, true, true), 2: limit(false, true, true), 3: limit(false, false, true), math.MaxInt32: limit(false, false, false),
	} {
		if got != want {
			t.Errorf("the limit is %d, want %d", got, want)
		}
	}
}

func TestDrainOnlyStatisticsAreThoseThatUsersDoNotSelect(t *testing.T) {
	var all []string
	for _, s := range drainSuffixes {
		all = append(all, "_"+s)
	}
	for name, c := range map[string]struct {
		matcher     *meshv1.ProxyConfig_ProxyStatsMatcher
		annotations map[string]string
		override    string
		want        []string
	}{
		"default":             {want: all},
		"other statistics":    {matcher: &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionPrefixes: []string{"cluster.outbound"}, InclusionSuffixes: []string{"upstream_rq_time"}}, want: all},
		"suffix":              {matcher: &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionSuffixes: []string{"downstream_cx_active"}}, want: all[1:]},
		"shorter suffix":      {annotations: map[string]string{annotationSuffixes: "_active"}, want: all[2:]},
		"prefix":              {matcher: &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionPrefixes: []string{"http.inbound"}}},
		"every statistic":     {matcher: &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionRegexps: []string{".*"}}},
		"annotation replaces": {matcher: &meshv1.ProxyConfig_ProxyStatsMatcher{InclusionSuffixes: []string{"_active"}}, annotations: map[string]string{annotationSuffixes: "x"}, want: all},
		"customized":          {override: "{}"},
	} {
		config := sidecar()
		config.ProxyConfig.ProxyStatsMatcher, config.Annotations = c.matcher, c.annotations
		if c.override != "" {
			config.Override = []byte(c.override)
		}
		if got := DrainOnlyStats(config); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}
