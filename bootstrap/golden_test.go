package bootstrap

import (
	"net/netip"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1 "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
)

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

// golden contains the configurations of the bootstraps in testdata, by name.
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
	"agent-secret": func() Config {
		c := sidecar()
		c.AgentSecret = "(not shown)" // as Render writes it
		c.FilesSocket = "./var/run/secrets/credential-uds/files-socket"
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
	"admin-socket": func() Config {
		c := sidecar()
		c.AdminSocket = "./etc/istio/proxy/admin/envoy.sock.0"
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
	// Input that would break a text template: quotes, line ends and braces in names.
	"hostile-names": func() Config {
		c := sidecar()
		c.Name = `quo"te`
		c.Labels = map[string]string{"app": "{{ .x }}", "note": "line\nend\\"}
		c.Metadata = map[string]any{"OWNER": `a"b,`, "NESTED": map[string]any{"list": []string{"x", `"`}}}
		return c
	},
	"waypoint": func() Config {
		c := sidecar()
		c.Type, c.SotW = Waypoint, true
		return c
	},
	// A memory limit and the ports for clients with a certificate of the mesh.
	"limited": func() Config {
		c := sidecar()
		c.MemoryLimit = 256 << 20
		c.LocalMetrics = true
		c.SecureMetricsPort, c.SecureMergedMetricsPort = 15091, 15092
		return c
	},
	"zone-aware": func() Config {
		c := sidecar()
		c.Metadata = map[string]any{
			"ENABLE_SELF_DISCOVERY":  "true",
			"LOAD_STATS_CONFIG_JSON": `{"api_type": "GRPC", "transport_api_version": "V3"}`,
		}
		return c
	},
	"proxy-protocol": func() Config {
		c := sidecar()
		c.Type = Router
		c.ProxyConfig.GatewayTopology = &meshv1.Topology{ProxyProtocol: &meshv1.Topology_ProxyProtocolConfiguration{}}
		c.ProxyConfig.StatsCompression = wrapperspb.Bool(false)
		return c
	},
	"services": func() Config {
		c := sidecar()
		c.ProxyConfig.EnvoyMetricsService = &meshv1.RemoteService{
			Address:     "metrics.example:15000",
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_ISTIO_MUTUAL, SubjectAltNames: []string{"spiffe://cluster.local/ns/x/sa/y"}},
			TcpKeepalive: &networking.ConnectionPoolSettings_TCPSettings_TcpKeepalive{
				Probes: 3, Time: durationpb.New(10 * time.Second), Interval: durationpb.New(5 * time.Second),
			},
		}
		c.ProxyConfig.EnvoyAccessLogService = &meshv1.RemoteService{
			Address: "[fd00::9]:9001",
			TlsSettings: &networking.ClientTLSSettings{
				Mode: networking.ClientTLSSettings_MUTUAL, ClientCertificate: "/certs/cert.pem", PrivateKey: "/certs/key.pem",
				CaCertificates: "/certs/ca.pem", Sni: "logs.example",
			},
		}
		return c
	},
	"tracing-zipkin": func() Config {
		c := sidecar()
		c.IPs, c.DualStack = append(c.IPs, netip.MustParseAddr("fd00::3")), true
		c.ProxyConfig.Tracing = &meshv1.Tracing{
			Tracer:      &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: "zipkin.example:9411"}},
			TlsSettings: &networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE},
		}
		return c
	},
	"tracing-datadog": func() Config {
		c := sidecar()
		c.HostIP = "10.9.9.9"
		c.ProxyConfig.Tracing = &meshv1.Tracing{
			Tracer: &meshv1.Tracing_Datadog_{Datadog: &meshv1.Tracing_Datadog{Address: "$(HOST_IP):8126"}},
		}
		return c
	},
	"tracing-lightstep": func() Config {
		c := sidecar()
		c.ProxyConfig.Tracing = &meshv1.Tracing{
			Tracer: &meshv1.Tracing_Lightstep_{Lightstep: &meshv1.Tracing_Lightstep{Address: "lightstep.example:443", AccessToken: "top-secret"}},
			TlsSettings: &networking.ClientTLSSettings{
				Mode: networking.ClientTLSSettings_SIMPLE, InsecureSkipVerify: wrapperspb.Bool(true),
			},
		}
		return c
	},
	"tracing-opentelemetry": func() Config {
		c := sidecar()
		c.TracingProvider = &meshv1.MeshConfig_ExtensionProvider{
			Name: "otel",
			Provider: &meshv1.MeshConfig_ExtensionProvider_Opentelemetry{
				Opentelemetry: &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{
					Service: "telemetry/otel.telemetry.svc.cluster.local", Port: 4317,
					Grpc: &meshv1.MeshConfig_ExtensionProvider_GrpcService{
						Timeout: durationpb.New(2 * time.Second),
						InitialMetadata: []*meshv1.MeshConfig_ExtensionProvider_HttpHeader{{
							Name:        "x-team",
							HeaderValue: &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: "shop"},
						}},
					},
				},
			},
		}
		return c
	},
	"tracing-opentelemetry-http": func() Config {
		c := sidecar()
		c.TracingProvider = &meshv1.MeshConfig_ExtensionProvider{
			Name: "otel",
			Provider: &meshv1.MeshConfig_ExtensionProvider_Opentelemetry{
				Opentelemetry: &meshv1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider{
					Service: "otel.example", Port: 4318,
					Http: &meshv1.MeshConfig_ExtensionProvider_HttpService{
						Path: "/v1/traces",
						Headers: []*meshv1.MeshConfig_ExtensionProvider_HttpHeader{{
							Name:        "api-key",
							HeaderValue: &meshv1.MeshConfig_ExtensionProvider_HttpHeader_EnvName{EnvName: "API_KEY"},
						}, {
							Name:        "x-share",
							HeaderValue: &meshv1.MeshConfig_ExtensionProvider_HttpHeader_Value{Value: "50% of them"},
						}},
					},
				},
			},
		}
		return c
	},
	"override": func() Config {
		c := sidecar()
		c.HostIP = "10.9.9.9"
		c.OverrideFile, c.Override = "override.yaml", []byte(mergedOverride)
		return c
	},
	"json-patch": func() Config {
		c := sidecar()
		c.OverrideFile, c.Override = "patch.json", []byte(`[
			{"op": "test", "path": "/static_resources/clusters/1/name", "value": "agent"},
			{"op": "replace", "path": "/static_resources/clusters/1/connect_timeout", "value": "1s"},
			{"op": "remove", "path": "/bootstrap_extensions/0"},
			{"op": "add", "path": "/layered_runtime/layers/0/static_layer/upstream.use_retry", "value": false}
		]`)
		return c
	},
	"custom": func() Config {
		c := sidecar()
		c.CustomFile, c.Custom = "custom.yaml", []byte("statsFlushInterval: 10s\n"+
			"static_resources:\n  clusters:\n  - {name: mine, connect_timeout: 1s, type: STATIC}\n")
		return c
	},
}

// mergedOverride contains common overrides and an extension whose type this program does not have.
const mergedOverride = `
staticResources:
  clusters:
  - name: statsd
    type: STRICT_DNS
    connectTimeout: 1s
    loadAssignment:
      clusterName: statsd
      endpoints: [{lbEndpoints: [{endpoint: {address: {socketAddress: {address: $(HOST_IP), portValue: 9125}}}}]}]
admin:
  access_log:
  - name: envoy.access_loggers.file
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
      path: /dev/null
stats_config:
  stats_tags: [{tag_name: shard, regex: "(shard=(.*?);)"}]
layered_runtime:
  layers:
  - name: mine
    static_layer: {health_check.min_interval: 250}
`

func addr(t testing.TB, text string) netip.Addr {
	t.Helper()
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
