package bootstrap

import (
	"encoding/json"
	"fmt"
	"net"
	"path"
	"reflect"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pilotfish-mesh/pilotfish/bootstrap/gotemplate"
)

// executeTemplate returns the custom bootstrap. If that is a Go template, executeTemplate executes it. The template
// options have the same names as in Istio's agent. Their values are those of the generated bootstrap.
func executeTemplate(c Config, own tree, name string) ([]byte, error) {
	if !gotemplate.IsTemplate(string(c.Custom)) {
		return c.Custom, nil
	}
	options, err := templateOptions(c, own)
	if err != nil {
		return nil, err
	}
	text, err := gotemplate.Execute(name, string(c.Custom), options, map[string]gotemplate.Func{
		"env": func(args ...any) (any, error) {
			if len(args) != 1 || c.Env == nil {
				return "", nil
			}
			return c.Env(fmt.Sprint(args[0])), nil
		},
	})
	return []byte(text), err
}

// templateOptions returns the data of a bootstrap template. An unset option is nil.
func templateOptions(c Config, own tree) (map[string]any, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	limit, _ := maxConnections(c)
	o := map[string]any{
		"global_downstream_max_connections": limit,
		"config":                            goFields(reflect.ValueOf(c.ProxyConfig).Elem()),
	}
	for _, add := range []func(map[string]any, Config, tree){
		identityOptions, addressOptions, statsOptions, serviceOptions, otherOptions,
	} {
		add(o, c, own)
	}
	return o, nil
}

func identityOptions(o map[string]any, c Config, own tree) {
	node := treeAt(own, "node")
	locality := treeAt(node, "locality")
	o["nodeID"], o["nodeType"], o["cluster"] = node["id"], string(c.Type), node["cluster"]
	o["region"], o["zone"], o["sub_zone"] = locality["region"], locality["zone"], locality["sub_zone"]
	o["meta_json_str"] = asJSON(node["metadata"])
	o["metadata"] = goMetadata(c, treeAt(node, "metadata"))
	o["discovery_address"] = c.ProxyConfig.GetDiscoveryAddress()
	o["discovery_host"], _, _ = strings.Cut(c.ProxyConfig.GetDiscoveryAddress(), ":")
	o["pilot_grpc_address"] = socketAddress(c.ProxyConfig.GetDiscoveryAddress())
	o["xds_root_cert"] = c.ControlPlaneRoot
	matchers := make([]any, len(c.ControlPlaneSANs))
	for i, san := range c.ControlPlaneSANs {
		matchers[i] = tree{"exact": san}
	}
	o["pilot_SAN"] = asJSON(matchers)
	o["workload_identity_socket_file"] = path.Base(c.SDSSocket)
	o["custom_file_path"] = nil
}

func addressOptions(o map[string]any, c Config, _ tree) {
	open := c.openAddresses()
	o["localhost"], o["wildcard"] = c.localAddress(), open[0]
	o["dual_stack"], o["additional_wildcard"], o["additional_localhost"] = len(open) > 1, nil, nil
	if len(open) > 1 {
		o["additional_wildcard"], o["additional_localhost"] = open[1], "::1"
		if net.ParseIP(open[1]).To4() != nil {
			o["additional_localhost"] = "127.0.0.1"
		}
	}
	o["dns_lookup_family"] = c.lookupFamily().String()
	o["envoy_status_port"], o["envoy_prometheus_port"] = int64(c.ReadinessPort), int64(c.PrometheusPort)
	o["secure_metrics_port"], o["secure_merged_metrics_port"] = int64(c.SecureMetricsPort), int64(c.SecureMergedMetricsPort)
	o["metrics_localhost_access_only"] = c.LocalMetrics
	o["envoy_status_port_enable_proxy_protocol"] = c.Type == Router && c.ProxyConfig.GetGatewayTopology().GetProxyProtocol() != nil
}

func statsOptions(o map[string]any, c Config, own tree) {
	o["stats_flush_interval"], o["stats_eviction_interval"] = own["stats_flush_interval"], own["stats_eviction_interval"]
	stats := treeAt(own, "stats_config")
	o["histogram_buckets"] = stats["histogram_bucket_settings"]
	patterns, _ := treeAt(stats, "stats_matcher", "inclusion_list")["patterns"].([]any)
	for option, get := range map[string]func(tree) any{
		"inclusionPrefix":  func(p tree) any { return p["prefix"] },
		"inclusionSuffix":  func(p tree) any { return p["suffix"] },
		"inclusionRegexps": func(p tree) any { return treeAt(p, "safe_regex")["regex"] },
	} {
		var values []any
		for _, p := range patterns {
			if v := get(p.(tree)); v != nil {
				values = append(values, v)
			}
		}
		o[option] = values
	}
	var tags []any
	for _, t := range extraTags(c) {
		tags = append(tags, t)
	}
	o["extraStatTags"] = tags
	o["envoy_metrics_stats_compression"] = len(compressors(c, newAnyBuilder())) > 0
}

func serviceOptions(o map[string]any, c Config, own tree) {
	clusters, _ := treeAt(own, "static_resources")["clusters"].([]any)
	cluster := func(name string) tree { t, _ := entryNamed(clusters, name).(tree); return t }
	o["tracing_tls"] = nil
	for option, name := range map[string]string{"zipkin": zipkinCluster, "lightstep": lightstepCluster, "datadog": datadogCluster} {
		o[option] = addressOf(cluster(name))
		if socket := cluster(name)["transport_socket"]; socket != nil {
			o["tracing_tls"] = asJSON(socket)
		}
	}
	o["lightstepToken"] = nil // a template must not write the token to a file, so the option is empty
	for _, name := range []string{metricsServiceCluster, accessLogServiceCluster} {
		o[name+"_address"] = addressOf(cluster(name))
		o[name+"_tls"] = asJSON(cluster(name)["transport_socket"])
		o[name+"_tcp_keepalive"] = asJSON(cluster(name)["upstream_connection_options"])
	}
	o["statsd"] = socketAddress(c.expand(c.ProxyConfig.GetStatsdUdpAddress()))
	o["enable_self_discovery"] = c.usesSelfDiscovery()
	o["load_stats_config_json_str"] = nil
	if text, ok := c.Metadata[loadStatsMetadata].(string); ok && text != "" {
		o["load_stats_config_json_str"] = gotemplate.Raw(text)
	}
}

func otherOptions(o map[string]any, c Config, own tree) {
	o["xds_type"] = treeAt(own, "dynamic_resources", "ads_config")["api_type"]
	o["metadata_discovery"] = false // Envoy's standard builds do not contain that extension
	o["outlier_log_path"] = c.OutlierLog
	o["log_json"] = c.LogAsJSON
	o["connect_timeout"] = "1s"
	layers, _ := treeAt(own, "layered_runtime")["layers"].([]any)
	if len(layers) > 0 {
		o["runtime_flags"] = asJSON(layers[0].(tree)["static_layer"])
	}
	o["stackdriver"], o["sts"], o["sts_port"] = false, false, nil
	for option, name := range map[string]string{"gcp_project_id": "gcp_project", "gcp_project_number": "gcp_project_number"} {
		o[option] = treeAt(own, "node", "metadata", "PLATFORM_METADATA")[name]
	}
}

// treeAt returns the object at a path of names, or nil if there is none.
func treeAt(t tree, names ...string) tree {
	for _, name := range names {
		t, _ = t[name].(tree)
	}
	return t
}

// asJSON returns JSON that a template inserts unchanged, or nil if there is no value.
func asJSON(v any) any {
	if v == nil {
		return nil
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return gotemplate.Raw(text)
}

func socketAddress(hostPort string) any {
	host, port, err := net.SplitHostPort(hostPort)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil {
		return nil
	}
	return asJSON(tree{"address": host, "port_value": number})
}

// addressOf returns the socket address of the only endpoint of a cluster, as JSON.
func addressOf(cluster tree) any {
	endpoint := firstOf(firstOf(treeAt(cluster, "load_assignment"), "endpoints"), "lb_endpoints")
	return asJSON(treeAt(endpoint, "endpoint", "address")["socket_address"])
}

// goMetadata returns the node's metadata with the field names of the Go type that Istio uses for it.
func goMetadata(c Config, metadata tree) tree {
	m := tree{"ProxyConfig": goFields(reflect.ValueOf(c.ProxyConfig).Elem()), "Raw": metadata}
	ips := []any{}
	for _, ip := range c.IPs {
		ips = append(ips, ip.String())
	}
	m["InstanceIPs"] = ips
	for field, name := range map[string]string{
		"InstanceName": "NAME", "Namespace": "NAMESPACE", "ServiceAccount": "SERVICE_ACCOUNT", "Labels": "LABELS",
		"Annotations": "ANNOTATIONS", "ClusterID": "CLUSTER_ID", "Network": "NETWORK", "MeshID": "MESH_ID", "NodeName": "NODE_NAME",
		"WorkloadName": "WORKLOAD_NAME", "Owner": "OWNER", "IstioVersion": "ISTIO_VERSION", "IstioRevision": "ISTIO_REVISION",
		"InterceptionMode": "INTERCEPTION_MODE", "PlatformMetadata": "PLATFORM_METADATA", "AppContainers": "APP_CONTAINERS",
		"OutlierLogPath": "OUTLIER_LOG_PATH", "StsPort": "STS_PORT", "IstioProxySHA": "ISTIO_PROXY_SHA",
	} {
		m[field] = metadata[name]
	}
	return m
}

// goFields returns the fields of a generated message by their Go names.
func goFields(m reflect.Value) tree {
	fields := tree{}
	for i := range m.NumField() {
		if f := m.Type().Field(i); f.IsExported() {
			fields[f.Name] = goValue(m.Field(i))
		}
	}
	return fields
}

func goValue(v reflect.Value) any {
	switch v.Kind() {
	case reflect.Interface, reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		if d, ok := v.Interface().(*durationpb.Duration); ok {
			return d.AsDuration().String()
		}
		return goValue(v.Elem())
	case reflect.Struct:
		return goFields(v)
	case reflect.Slice:
		list := make([]any, v.Len())
		for i := range list {
			list[i] = goValue(v.Index(i))
		}
		return list
	case reflect.Map:
		entries := tree{}
		for _, key := range v.MapKeys() {
			entries[fmt.Sprint(key.Interface())] = goValue(v.MapIndex(key))
		}
		return entries
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Float32, reflect.Float64:
		return v.Float()
	}
	if v.CanInt() {
		return v.Int()
	}
	if v.CanUint() {
		return int64(v.Uint())
	}
	return nil
}
