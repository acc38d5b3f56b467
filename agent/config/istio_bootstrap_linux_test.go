package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/pilotfish-mesh/pilotfish/bootstrap"
	"github.com/pilotfish-mesh/pilotfish/internal/testenv"
)

// istioDifferences are the fields in which the bootstrap differs from Istio's on purpose. A path consists of field names,
// and the names of list elements in brackets.
var istioDifferences = []struct{ path, reason string }{
	{`^application_log_config\.`, "the agent passes the log format on the command line, so that it also applies to the lines before the bootstrap is read"},
	{`^admin\.access_log`, "Envoy writes no access log of the admin interface by default"},
	{`^node\.id$`, "Istio's test sets an ID that is not that of its metadata"},
	{`^node\.locality$`, "Istio writes an empty locality"},
	{`^node\.metadata\.(istio-locality|LABELS\.istio-locality)$`, "control planes accept both separators of a locality"},
	{`^node\.cluster$`, "Istio omits the namespace if POD_NAMESPACE is not set; the agent uses the namespace default"},
	{`^node\.metadata\.(NAMESPACE|SERVICE_ACCOUNT|POD_NAME)$`, "the agent sets the defaults of missing variables"},
	{`^node\.metadata\.(ISTIO_VERSION|XDS_ROOT_CERT)$`, "the value is that of the agent"},
	{`^node\.metadata\.METADATA_DISCOVERY$`, "only the extension of Istio's Envoy reads it"},
	{`^node\.metadata\.WORKLOAD_IDENTITY_SOCKET_FILE$`, "the path of the cluster sds-grpc contains it"},
	{`^node\.metadata\.PILOT_SAN`, "the names in the certificate of the control plane are those of the agent"},
	{`^node\.metadata\.PROXY_CONFIG\.`, "the agent adds its defaults, and the test omits Istio's template"},
	{`^stats_config\.stats_matcher.*workload_discovery`, "only Istio's Envoy has these statistics"},
	{`^stats_config\.stats_tags\[(cluster_name|http_conn_manager_prefix)\]\.regex$`, "the expressions also match the names of control planes that do not append a semicolon"},
	{`^stats_config\.stats_matcher.*(control_plane\.connected_state|downstream_cx_active|downstream_rq_active|downstream_cx_tx_bytes_buffered|downstream_cx_total|downstream_rq_total)`, "readiness and drain read these statistics"},
	{`\.ignore_global_conn_limit$`, "it applies only to the limit in the runtime, which the bootstrap does not set"},
	{`^static_resources\.clusters\[xds-grpc\]\.max_requests_per_connection$`, "the deprecated form of the option in typed_extension_protocol_options"},
	{`^static_resources\.clusters\[xds-grpc\]\.typed_extension_protocol_options\..*max_requests_per_connection$`, "the current form of the option"},
	{`^static_resources\.clusters\[.*\]\.typed_extension_protocol_options\..*http_filters`, "Envoy sends the agent's secret to the agent's sockets"},
	{`^static_resources\.secrets\[`, "Envoy sends the agent's secret to the agent's sockets"},
	{`\.dns_refresh_rate$`, "the cluster of every telemetry service resolves its name as often as that of Zipkin"},
	{`\.wait_for_warm_on_init$`, "Envoy does not delay its start until the name of a telemetry service is resolved"},
	{`\.transport_socket\..*\.(tls_minimum_protocol_version|tls_maximum_protocol_version|sni|initial_fetch_timeout)$`, "the agent allows TLS 1.3, sends the server's name, and limits the wait for certificates"},
	{`^tracing\.http\.typed_config\.collector_hostname$`, "the Host header is that of the address instead of the cluster's name"},
	{`^tracing\.http\.typed_config\.service_name$`, "it is the name of the node's cluster, see node.cluster"},
	{`^tracing\.http\.(name|typed_config\.(@type|collector_cluster|access_token_file|grpc_service\..*))$`, "Envoy removed the tracer of Lightstep; its successor speaks OpenTelemetry"},
	{`^stats_sinks\[envoy\.stat_sinks\.statsd\]\..*\.protocol$`, "StatsD uses UDP; Istio omits the protocol"},
	{`^layered_runtime\..*\.overload\.global_downstream_max_connections$`, "the overload manager enforces the limit"},
	{`^cluster_manager\.load_stats_config\.grpc_services`, "without a service, Envoy would reject the configuration"},
	{`^static_resources\.clusters\[xds-grpc\]\.load_assignment\..*pipe\.path$`, "the directory of Istio's test"},
	{`^node\.metadata\.PILOTFISH_UNPACKS_LABELS$`, "the control plane then packs labels of metrics, which the agent unpacks"},
	{`^static_resources\.listeners\[0\.0\.0\.0_15090\].*\.route\.(cluster|prefix_rewrite)$`, "the agent serves Envoy's metrics with unpacked labels"},
	{`^static_resources\.listeners\[0\.0\.0\.0_1509[12]\]`, "a chain for TLS only needs no inspector; the agent compresses these metrics and verifies clients by the mesh's identities"},
}

// TestBootstrapDiffersFromIstioOnlyOnPurpose builds the bootstrap for the inputs of Istio's golden bootstraps, which their
// node metadata contains.
func TestBootstrapDiffersFromIstioOnlyOnPurpose(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(testenv.IstioSource(t), "pkg/bootstrap/testdata/*_golden.json"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d golden bootstraps, %v", len(files), err)
	}
	used := map[string]bool{}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), "_golden.json")
		switch name {
		case "legacy_stats_tags_regex": // of a removed option: Istio's test does not read it
			continue
		}
		t.Run(name, func(t *testing.T) {
			golden := readIstioBootstrap(t, file)
			theirs, ours := flatten(t, golden), flatten(t, buildLike(t, name, golden))
			for _, path := range slices.Sorted(maps.Keys(union(theirs, ours))) {
				if theirs[path] != ours[path] && !isIntended(path, used) {
					t.Errorf("%s: Istio: %s, pilotfish: %s", path, theirs[path], ours[path])
				}
			}
		})
	}
	for _, d := range istioDifferences {
		if !used[d.path] {
			t.Errorf("no golden bootstrap differs in %s (%s): remove the entry", d.path, d.reason)
		}
	}
}

func isIntended(path string, used map[string]bool) bool {
	for _, d := range istioDifferences {
		if regexp.MustCompile(d.path).MatchString(path) {
			used[d.path] = true
			return true
		}
	}
	return false
}

func union(a, b map[string]string) map[string]string {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// readIstioBootstrap reads a golden bootstrap. It replaces each TypedStruct by the message that it describes, and removes
// the extension of Istio's Envoy, whose type is not available.
func readIstioBootstrap(t *testing.T, file string) *bootstrapv3.Bootstrap {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := yaml.Unmarshal(text, &tree); err != nil { // the files have trailing commas
		t.Fatal(err)
	}
	var extensions []any
	for _, e := range tree["bootstrap_extensions"].([]any) {
		extension := e.(map[string]any)
		typed := extension["typed_config"].(map[string]any)
		if typed["type_url"] == "type.googleapis.com/istio.workload.BootstrapExtension" {
			continue
		}
		value := typed["value"].(map[string]any)
		value["@type"] = typed["type_url"]
		extension["typed_config"] = value
		extensions = append(extensions, extension)
	}
	tree["bootstrap_extensions"] = extensions
	text, err = json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(text, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// buildLike returns the agent's bootstrap for the inputs of a golden bootstrap.
func buildLike(t *testing.T, name string, golden *bootstrapv3.Bootstrap) *bootstrapv3.Bootstrap {
	t.Helper()
	t.Chdir(t.TempDir())
	in := Inputs{Flags: Flags{Type: "sidecar", Changed: map[string]bool{}}}
	set := func(variable string, value any) {
		text, isText := value.(string)
		if !isText {
			data, err := json.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		in.Env = append(in.Env, variable+"="+text)
	}
	for key, value := range golden.GetNode().GetMetadata().AsMap() {
		switch key {
		case "PROXY_CONFIG":
			proxy := value.(map[string]any)
			delete(proxy, "customConfigFile")
			set("PROXY_CONFIG", proxy)
		case "INSTANCE_IPS":
			addresses := strings.Split(value.(string), ",")
			set("INSTANCE_IP", addresses[0])
			in.Interfaces = func() (all []netip.Addr, err error) {
				for _, a := range addresses {
					all = append(all, netip.MustParseAddr(a))
				}
				return all, nil
			}
		case "ANNOTATIONS":
			writeAnnotations(t, value.(map[string]any))
		case "LABELS":
			set("ISTIO_METAJSON_LABELS", value)
		case "NAME", "NAMESPACE":
			set("POD_"+key, value)
		case "OUTLIER_LOG_PATH":
			in.Flags.OutlierLog = value.(string)
		case "ENVOY_SECURE_METRICS_PORT", "ENVOY_SECURE_MERGED_METRICS_PORT", "WORKLOAD_IDENTITY_SOCKET_FILE":
			set(key, value)
		case "ENVOY_STATUS_PORT", "ENVOY_PROMETHEUS_PORT", "ISTIO_VERSION", "METADATA_DISCOVERY", "PILOT_SAN":
		default:
			set("ISTIO_META_"+key, value)
		}
	}
	if name == "lrs" {
		set("COMPLIANCE_POLICY", "fips-140-2")
	}
	b, err := bootstrap.Build(resolve(t, in).BootstrapConfig())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeAnnotations(t *testing.T, annotations map[string]any) {
	t.Helper()
	var text strings.Builder
	for name, value := range annotations {
		fmt.Fprintf(&text, "%s=%q\n", name, value)
	}
	if err := os.MkdirAll(filepath.Dir(annotationsFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(annotationsFile, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// flatten returns the values of all fields that are set, by path.
func flatten(t *testing.T, b *bootstrapv3.Bootstrap) map[string]string {
	t.Helper()
	text, err := bootstrap.JSON(b)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	fields := map[string]string{}
	addFields(fields, "", tree)
	return fields
}

func addFields(fields map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) == 0 {
			fields[path] = "{}"
		}
		for key, inner := range v {
			addFields(fields, strings.TrimPrefix(path+"."+key, "."), inner)
		}
	case []any:
		for i, inner := range v {
			addFields(fields, fmt.Sprintf("%s[%s]", path, elementName(path, i, inner)), inner)
		}
	default:
		fields[path] = fmt.Sprint(v)
	}
}

// elementName returns the name of a list element, or its position. The patterns of statistics are a set.
func elementName(path string, position int, element any) string {
	fields, _ := element.(map[string]any)
	for _, key := range []string{"name", "tag_name"} {
		if name, ok := fields[key].(string); ok {
			return name
		}
	}
	if strings.HasSuffix(path, ".patterns") {
		return fmt.Sprint(element)
	}
	return fmt.Sprint(position)
}
