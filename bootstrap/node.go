package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1 "istio.io/api/mesh/v1alpha1"
)

// Labels that contain a workload's locality.
const (
	localityLabel   = "istio-locality"
	localityLabelV2 = "topology.istio.io/locality"
)

// Node returns the xDS node of the proxy: ID, cluster, locality and metadata.
func Node(c Config) (*corev3.Node, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	metadata, err := nodeMetadata(c)
	if err != nil {
		return nil, err
	}
	return &corev3.Node{
		Id:       NodeID(c),
		Cluster:  nodeCluster(c),
		Locality: nodeLocality(c.Labels, c.Locality),
		Metadata: metadata,
	}, nil
}

// NodeID returns type~address~name.namespace~domain.
func NodeID(c Config) string {
	domain := c.Domain
	if domain == "" {
		domain = c.Namespace + ".svc.cluster.local"
	}
	address := ""
	if len(c.IPs) > 0 {
		address = c.IPs[0].String()
	}
	return strings.Join([]string{string(c.Type), address, c.Name + "." + c.Namespace, domain}, "~")
}

// nodeCluster returns the node's cluster, as ProxyConfig specifies. In statistics and traces, it identifies the
// workload.
func nodeCluster(c Config) string {
	tracing, ok := c.ProxyConfig.GetClusterName().(*meshv1.ProxyConfig_TracingServiceName_)
	if !ok {
		return clusterOrDefault(c.ProxyConfig.GetServiceCluster(), c)
	}
	switch tracing.TracingServiceName {
	case meshv1.ProxyConfig_CANONICAL_NAME_ONLY:
		return clusterOrDefault(canonicalService(c), c)
	case meshv1.ProxyConfig_CANONICAL_NAME_AND_NAMESPACE:
		if c.Namespace == "" {
			return clusterOrDefault(canonicalService(c), c)
		}
		return canonicalService(c) + "." + c.Namespace
	}
	return clusterOrDefault("", c)
}

const anonymousCluster = "istio-proxy"

func clusterOrDefault(name string, c Config) string {
	if name != "" && name != anonymousCluster {
		return name
	}
	workload := anonymousCluster
	if app := c.Labels["app"]; app != "" {
		workload = app
	} else if w := workloadName(c); w != "" {
		workload = w
	}
	if c.Namespace == "" {
		return workload
	}
	return workload + "." + c.Namespace
}

func workloadName(c Config) string {
	name, _ := c.Metadata["WORKLOAD_NAME"].(string)
	return name
}

func canonicalService(c Config) string {
	for _, label := range []string{"service.istio.io/canonical-name", "app.kubernetes.io/name", "app"} {
		if name := c.Labels[label]; name != "" {
			return name
		}
	}
	if name := workloadName(c); name != "" {
		return name
	}
	return anonymousCluster
}

// nodeLocality parses region/zone/subzone from the locality labels, or from fallback if there are none. It returns nil
// if both are empty. In a label, the separators may be dots, because label values cannot contain slashes.
func nodeLocality(labels map[string]string, fallback string) *corev3.Locality {
	text := labels[localityLabelV2]
	if text == "" {
		text = labels[localityLabel]
	}
	if text == "" {
		text = fallback
	}
	if text == "" {
		return nil
	}
	if !strings.Contains(text, "/") {
		text = strings.ReplaceAll(text, ".", "/")
	}
	parts := append(strings.SplitN(text, "/", 3), "", "")
	return &corev3.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}
}

// filesMetadata is the metadata entry that notifies the control plane that the cluster filesCluster serves the secrets
// in files.
const filesMetadata = "file-credential"

// unpackMetadata is the metadata entry that permits the control plane to pack all labels of a metric into one. Every
// reader of Envoy's statistics then reads them through the agent, which unpacks the labels.
const unpackMetadata = "PILOTFISH_UNPACKS_LABELS"

// unpacksLabels reports whether all readers of Envoy's statistics read them through the agent, which unpacks labels. It
// returns false for a statistics sink and for a custom bootstrap, whose readers would receive packed labels. The user's
// unpackMetadata overrides the result.
func (c Config) unpacksLabels() bool {
	if text, ok := c.Metadata[unpackMetadata]; ok {
		wanted, _ := strconv.ParseBool(fmt.Sprint(text))
		return wanted
	}
	return len(c.Custom) == 0 && !c.hasStatsSinks()
}

// nodeMetadata returns c.Metadata with the entries that this package sets. These entries override those in c.Metadata.
// Addresses and booleans are strings, as Istio's control plane expects.
func nodeMetadata(c Config) (*structpb.Struct, error) {
	m := maps.Clone(c.Metadata)
	if m == nil {
		m = map[string]any{}
	}
	set := func(key, value string) {
		if value != "" {
			m[key] = value
		}
	}
	set("NAME", c.Name)
	set("NAMESPACE", c.Namespace)
	set("SERVICE_ACCOUNT", c.ServiceAccount)
	set("INSTANCE_IPS", joinIPs(c))
	if len(c.ControlPlaneSANs) > 0 {
		m["PILOT_SAN"] = c.ControlPlaneSANs
	}
	set("XDS_ROOT_CERT", c.ControlPlaneRoot)
	set("OUTLIER_LOG_PATH", c.OutlierLog)
	set("MESH_ID", c.ProxyConfig.GetMeshId())
	if c.ExitOnZero {
		set("EXIT_ON_ZERO_ACTIVE_CONNECTIONS", "true")
	}
	if c.FilesSocket != "" {
		set(filesMetadata, "true")
	}
	if c.unpacksLabels() {
		set(unpackMetadata, "true")
	}
	if _, ok := m["ISTIO_VERSION"]; !ok {
		set("ISTIO_VERSION", c.IstioVersion)
	}
	for key, port := range map[string]uint32{
		"ENVOY_STATUS_PORT": c.ReadinessPort, "ENVOY_PROMETHEUS_PORT": c.PrometheusPort,
		"ENVOY_SECURE_METRICS_PORT": c.SecureMetricsPort, "ENVOY_SECURE_MERGED_METRICS_PORT": c.SecureMergedMetricsPort,
	} {
		if port != 0 {
			m[key] = port
		}
	}
	setMap(m, "LABELS", c.Labels)
	setMap(m, "ANNOTATIONS", c.Annotations)
	proxyConfig, err := proxyConfigMetadata(c.ProxyConfig)
	if err != nil {
		return nil, err
	}
	m["PROXY_CONFIG"] = proxyConfig
	return toStruct(m)
}

func setMap(m map[string]any, key string, values map[string]string) {
	if len(values) > 0 {
		m[key] = values
	}
}

func joinIPs(c Config) string {
	var ips []string
	for _, ip := range c.IPs {
		if s := ip.String(); !slices.Contains(ips, s) {
			ips = append(ips, s)
		}
	}
	return strings.Join(ips, ",")
}

func proxyConfigMetadata(pc *meshv1.ProxyConfig) (json.RawMessage, error) {
	if pc.GetTracing().GetLightstep() != nil {
		pc = withoutTokens(Config{ProxyConfig: pc}).ProxyConfig
	}
	b, err := protojson.Marshal(pc)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the proxy configuration as node metadata: %w", err)
	}
	return b, nil
}

// toStruct converts metadata to a Struct by encoding it as JSON. It therefore supports every Go value that
// encoding/json supports.
func toStruct(m map[string]any) (*structpb.Struct, error) {
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the node metadata: %w", err)
	}
	plain := map[string]any{}
	if err := json.Unmarshal(b, &plain); err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the node metadata: %w", err)
	}
	s, err := structpb.NewStruct(plain)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: encoding the node metadata: %w", err)
	}
	return s, nil
}
