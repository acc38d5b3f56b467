package bootstrap

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"
	meshv1 "istio.io/api/mesh/v1alpha1"

	"github.com/pilotfish-mesh/pilotfish/bootstrap/gotemplate"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

func templated(t *testing.T) Config {
	t.Helper()
	text, err := os.ReadFile("testdata/bootstrap.tmpl")
	if err != nil {
		t.Fatal(err)
	}
	c := sidecar()
	c.ProxyConfig = &meshv1.ProxyConfig{
		ConfigPath: "./etc/istio/proxy", ProxyAdminPort: 15000, StatusPort: 15020, ExtraStatTags: []string{"team"},
		Tracing: &meshv1.Tracing{Tracer: &meshv1.Tracing_Zipkin_{Zipkin: &meshv1.Tracing_Zipkin{Address: "zipkin.obs:9411"}}},
	}
	c.Custom, c.CustomFile = text, "own.tmpl"
	return c
}

func TestEnvoyAcceptsBootstrapFromGoTemplateWithIstioOptions(t *testing.T) {
	c := templated(t)
	c.Labels = map[string]string{"app": "reviews", "topology.istio.io/locality": "eu/north/a"}
	c.Annotations = map[string]string{annotationFlush: "10s", annotationBuckets: `{"http": [1, 5]}`}
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeObject(text)
	if err != nil {
		t.Fatal(err)
	}
	own := c
	own.Custom = nil
	want, err := ownTree(own)
	if err != nil {
		t.Fatal(err)
	}
	forbidPackedLabels(want)
	for _, part := range [][]string{{"node", "id"}, {"node", "cluster"}, {"node", "metadata"}, {"dynamic_resources"}, {"layered_runtime"}, {"stats_flush_interval"}} {
		g, w := treeAt(got, part[:len(part)-1]...)[part[len(part)-1]], treeAt(want, part[:len(part)-1]...)[part[len(part)-1]]
		if fmt.Sprint(g) != fmt.Sprint(w) {
			t.Errorf("%v:\n got %v\nwant %v", part, g, w)
		}
	}
	for _, part := range []string{`"of_the_template"`, `"(team=\\.=(.*?);\\.;)"`, `"zipkin.obs"`, `"prefix": "http"`, `"region": "eu"`, `"0.0.0.0_15021"`, `"http2_protocol_options"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the result lacks %s", part)
		}
	}
	for _, version := range testenv.EnvoyVersions() {
		c.Envoy = numbersOf(t, version)
		validate(t, testenv.EnvoyOf(t, version), encoded(t, c))
	}
}

// Bootstraps written for Istio's agent name the admin interface's port.
func TestAdminSocketReplacesTheDefaultAddressInACustomBootstrap(t *testing.T) {
	const socket = "./admin/envoy.sock.0"
	c := templated(t)
	c.AdminSocket = socket
	text, err := Encode(c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeObject(text)
	if err != nil {
		t.Fatal(err)
	}
	if p := treeAt(got, "admin", "address", "pipe"); p["path"] != socket || fmt.Sprint(p["mode"]) != fmt.Sprint(0o600) {
		t.Errorf("admin.address is %v", treeAt(got, "admin", "address"))
	}
	if strings.Contains(string(text), `"port_value": 15000`) {
		t.Errorf("the result still contains port 15000:\n%s", text)
	}
	c.Custom = []byte(strings.ReplaceAll(string(c.Custom), "{{ .config.ProxyAdminPort }}", "15999"))
	if _, err := Encode(c); err == nil || !strings.Contains(err.Error(), "ENVOY_ADMIN_SOCKET") {
		t.Errorf("another port: %v", err)
	}
}

// The template contains a superfluous comma, as Istio's template does.
func TestTemplateForAGatewayBehindABalancer(t *testing.T) {
	c := templated(t)
	c.Type = Router
	c.ProxyConfig.GatewayTopology = &meshv1.Topology{ProxyProtocol: &meshv1.Topology_ProxyProtocolConfiguration{}}
	text, err := Encode(c)
	if err != nil || !strings.Contains(string(text), "ProxyProtocol") {
		t.Fatalf("%v, %s", err, text)
	}
}

// istiosOptions are the option names in bootstraps for Istio's agent.
var istiosOptions = strings.Fields(`config pilot_SAN connect_timeout cluster nodeID nodeType xds_type region zone sub_zone meta_json_str
	runtime_flags discovery_address xds_root_cert localhost additional_localhost wildcard additional_wildcard dual_stack
	dns_lookup_family outlier_log_path custom_file_path log_json lightstep lightstepToken stackdriver pilot_grpc_address zipkin datadog
	statsd tracing_tls envoy_metrics_service_address envoy_metrics_service_tls envoy_metrics_service_tcp_keepalive
	envoy_metrics_stats_compression envoy_accesslog_service_address envoy_accesslog_service_tls envoy_accesslog_service_tcp_keepalive
	extraStatTags inclusionPrefix inclusionSuffix inclusionRegexps envoy_status_port global_downstream_max_connections
	envoy_status_port_enable_proxy_protocol enable_self_discovery envoy_prometheus_port secure_metrics_port
	secure_merged_metrics_port sts_port gcp_project_id gcp_project_number metadata sts discovery_host metadata_discovery
	metrics_localhost_access_only load_stats_config_json_str workload_identity_socket_file histogram_buckets stats_flush_interval
	stats_eviction_interval`)

func TestEveryOptionOfIstiosBootstrapIsKnown(t *testing.T) {
	own, err := ownTree(sidecar())
	if err != nil {
		t.Fatal(err)
	}
	options, err := templateOptions(sidecar(), own)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range istiosOptions {
		if _, err := gotemplate.Execute("t", "{{ ."+name+" }}", options, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestTemplateSeesConfigMetadataAndEnvironment(t *testing.T) {
	c := templated(t)
	c.ProxyConfig.DrainDuration = durationpb.New(45e9)
	c.Env = func(name string) string { return map[string]string{"TEAM": "bo\"oks"}[name] }
	own, err := ownTree(c)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"{{ .config.DrainDuration }} {{ .config.ConfigPath }} {{ .config.Tracing.Tracer.Zipkin.Address }}": "45s ./etc/istio/proxy zipkin.obs:9411",
		"{{ .metadata.Namespace }} {{ .metadata.Labels.app }} {{ index .metadata.InstanceIPs 0 }}":         "default reviews 10.3.3.3",
		`{{ env "TEAM" }}{{ env "NONE" }}`: `bo\"oks`,
		"{{ .zipkin }}":                    `{"address":"zipkin.obs","port_value":9411}`,
		"{{ .inclusionSuffix }}{{ if .metadata_discovery }}x{{ end }}": "[rbac.allowed rbac.denied shadow_allowed shadow_denied downstream_cx_active downstream_rq_active downstream_cx_tx_bytes_buffered downstream_cx_total downstream_rq_total]",
	} {
		c.Custom = []byte(text)
		if got, err := executeTemplate(c, own, "t"); err != nil || string(got) != want {
			t.Errorf("%s: %s, %v; want %s", text, got, err, want)
		}
	}
}

// TestTemplateThatLeadsToAnotherAgentIsRefused: a template must not make Envoy connect to another agent.
func TestTemplateThatLeadsToAnotherAgentIsRefused(t *testing.T) {
	c := templated(t)
	c.Custom = []byte(strings.ReplaceAll(string(c.Custom), "{{ .config.ConfigPath }}/XDS", "/somewhere/else"))
	if _, err := Encode(c); err == nil || !strings.Contains(err.Error(), "xds-grpc") || !strings.Contains(err.Error(), filepath.Base(c.CustomFile)) {
		t.Errorf("%v", err)
	}
}
