package bootstrap

import (
	"bytes"
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

var update = flag.Bool("update", false, "write the golden files anew")

func sidecar() Config {
	return Config{
		Type:           Sidecar,
		IPs:            []netip.Addr{netip.MustParseAddr("10.3.3.3")},
		Name:           "reviews-v1-6d8f",
		Namespace:      "default",
		ServiceAccount: "bookshop-reviews",
		Labels:         map[string]string{"app": "reviews", "version": "v1", "topology.istio.io/locality": "eu/north/a"},
		ProxyConfig:    &meshv1.ProxyConfig{},
		IstioVersion:   "1.31.0",
	}
}

var golden = map[string]func() Config{
	"sidecar": sidecar,
	"router": func() Config {
		c := sidecar()
		c.Type = Router
		c.Name, c.Namespace = "gateway-5f", "istio-ingress"
		c.Labels = map[string]string{"istio": "ingressgateway"}
		c.SotW = true
		c.ExitOnZero = true
		return c
	},
	"bind": func() Config {
		c := sidecar()
		c.IPs = []netip.Addr{netip.MustParseAddr("127.77.3.1")}
		c.Bind = c.IPs[0]
		c.Metadata = map[string]any{
			"INTERCEPTION_MODE":  "NONE",
			"APP_ADDRESS":        "127.77.3.2",
			"UPSTREAM_LISTENERS": "mysql.default.svc.cluster.local:3306=127.77.3.16:3306",
		}
		return c
	},
	"ipv6": func() Config {
		c := sidecar()
		c.IPs = []netip.Addr{netip.MustParseAddr("fd00::3")}
		return c
	},
	"dual-stack": func() Config {
		c := sidecar()
		c.IPs = append(c.IPs, netip.MustParseAddr("fd00::3"))
		c.DualStack = true
		return c
	},
	"custom-stats": func() Config {
		c := sidecar()
		c.IPs = append(c.IPs, netip.MustParseAddr("10.4.4.4"))
		c.ProxyConfig = &meshv1.ProxyConfig{
			StatsdUdpAddress: "127.0.0.1:9125",
			ExtraStatTags:    []string{"request_host"},
			ProxyStatsMatcher: &meshv1.ProxyConfig_ProxyStatsMatcher{
				InclusionPrefixes: []string{"http.{pod_ip}_"},
				InclusionSuffixes: []string{"upstream_rq_time"},
				InclusionRegexps:  []string{`.*outlier.*`},
			},
		}
		c.Annotations = map[string]string{
			annotationSuffixes:  "upstream_cx_active",
			annotationExtraTags: "request_host,destination_port",
			annotationBuckets:   `{"istiocustom": [1, 5, 50, 500], "cluster": [1, 10]}`,
			annotationFlush:     "2m",
			annotationEviction:  "10m",
		}
		return c
	},
	"settings": func() Config {
		c := sidecar()
		c.ProxyConfig = &meshv1.ProxyConfig{
			ConfigPath:     "./proxy",
			ProxyAdminPort: 15500,
			StatusPort:     15520,
			MeshId:         "mesh1",
			ClusterName: &meshv1.ProxyConfig_TracingServiceName_{
				TracingServiceName: meshv1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE,
			},
			RuntimeValues: map[string]string{
				"envoy.reloadable_features.http_reject_path_with_fragment": "",
				"health_check.min_interval":                                "250",
				"upstream.use_retry":                                       "false",
			},
			ConnectionSettings: &meshv1.ProxyConfig_ConnectionSettings{
				GlobalDownstreamConnectionLimit: wrapperspb.Int32(5000),
			},
		}
		c.ReadinessPort, c.PrometheusPort = 15521, 15590
		c.SDSSocket = "./sds/socket"
		c.OutlierLog = "/dev/stdout"
		c.ControlPlaneSANs = []string{"istiod.istio-system.svc", "istiod.example"}
		c.ControlPlaneRoot = "./var/run/secrets/istio/root-cert.pem"
		return c
	},
	// What a template would have broken: quotes, line ends and braces in names.
	"hostile-names": func() Config {
		c := sidecar()
		c.Name = `quo"te`
		c.Labels = map[string]string{"app": "{{ .x }}", "note": "line\nend\\"}
		c.Metadata = map[string]any{"OWNER": `a"b,`, "NESTED": map[string]any{"list": []string{"x", `"`}}}
		return c
	},
}

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
	if err := b.ValidateAll(); err != nil {
		t.Errorf("Envoy's own validation rules refuse it: %v", err)
	}
	out, err := JSON(b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTheFileForEnvoySaysWhatTheBootstrapSays(t *testing.T) {
	for name, config := range golden {
		t.Run(name, func(t *testing.T) {
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
				t.Fatalf("it is not protobuf's JSON: %v\n%s", err, text)
			}
			if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnvoyAcceptsEveryGoldenBootstrap(t *testing.T) {
	for _, version := range []string{testenv.EnvoyVersion, testenv.OldEnvoyVersion} {
		envoy := testenv.EnvoyOf(t, version)
		for name := range golden {
			t.Run(version+"/"+name, func(t *testing.T) {
				validate(t, envoy, filepath.Join("testdata", name+".json"))
				validate(t, envoy, encoded(t, golden[name]()))
			})
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

// validate lets Envoy read a bootstrap, and takes a warning or a bug report in its log for a failure too.
func validate(t *testing.T, envoy, file string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "--allow-unknown-static-fields",
		"--concurrency", "1", "-l", "warning", "--skip-deprecated-logs", "-c", file)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s refuses %s: %v\n%s", envoy, file, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "[warning]") || strings.Contains(line, "envoy bug") {
			t.Errorf("Envoy complains of %s: %s", file, line)
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
		"flush interval": {
			func(c *Config) { c.Annotations = map[string]string{annotationFlush: "often"} },
			[]string{annotationFlush, `"often"`, "10s"},
		},
		"eviction interval": {
			func(c *Config) { c.Annotations = map[string]string{annotationEviction: "-1s"} },
			[]string{annotationEviction, `"-1s"`},
		},
		"buckets": {
			func(c *Config) { c.Annotations = map[string]string{annotationBuckets: "[1,2]"} },
			[]string{annotationBuckets, "[1,2]", "prefix"},
		},
		"statsd name": {
			func(c *Config) { c.ProxyConfig.StatsdUdpAddress = "statsd:9125" },
			[]string{"statsdUdpAddress", "statsd:9125"},
		},
		"connection limit": {
			func(c *Config) { c.Metadata = map[string]any{maxConnectionsMetadata: "many"} },
			[]string{"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS", `"many"`},
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
					t.Errorf("the error does not say %s: %v", want, err)
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
